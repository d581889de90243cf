/** The filters of the runs: in the address, and as the API reads them. */
export const SINCE_HOURS: Record<string, number> = { '1h': 1, '24h': 24, '7d': 24 * 7, '30d': 24 * 30 };
export const LIMIT = 50;
/** The states of the one filter that people see: under way, or how a run ended. */
export const STATES = ['pending', 'running', 'success', 'error', 'timeout'] as const;
export const ORIGINS = ['api', 'tool', 'chat', 'mcp'] as const;

export interface RunQuery {
  skill?: string;
  state?: 'pending' | 'running';
  status?: string;
  caller?: string;
  origin?: (typeof ORIGINS)[number];
  since?: string;
  page: number;
  limit: number;
}

export function queryOf(filters: URLSearchParams, now: number): RunQuery {
  const query: RunQuery = { page: pageOf(filters), limit: LIMIT };
  const skill = filters.get('skill')?.trim();
  if (skill) query.skill = skill;
  const state = filters.get('status') ?? filters.get('state') ?? '';
  if (state === 'pending' || state === 'running') query.state = state;
  else if (state !== '') query.status = state;
  const caller = filters.get('caller')?.trim();
  if (caller) query.caller = caller;
  const origin = ORIGINS.find((name) => name === filters.get('origin'));
  if (origin) query.origin = origin;
  const since = filters.get('since') ?? '';
  if (since in SINCE_HOURS) {
    // Rounded to a minute, so that the same view asks the same question.
    const from = Math.floor((now - SINCE_HOURS[since]! * 3_600_000) / 60_000) * 60_000;
    query.since = new Date(from).toISOString();
  } else if (since !== '' && !Number.isNaN(Date.parse(since))) query.since = new Date(since).toISOString();
  return query;
}

export function pageOf(filters: URLSearchParams): number {
  const page = Number(filters.get('page') ?? '1');
  return Number.isInteger(page) && page >= 1 ? page : 1;
}

const NAMES = ['skill', 'state', 'status', 'caller', 'origin', 'since'];

export function hasFilters(filters: URLSearchParams): boolean {
  return NAMES.some((name) => (filters.get(name) ?? '') !== '');
}
