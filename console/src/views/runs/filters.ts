/** The filters of the runs: in the address, and as the API reads them. */
import { pageOf } from '../../app/pages';

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
  const skill = textOf(filters, 'skill');
  if (skill) query.skill = skill;
  const state = filters.get('status') ?? filters.get('state') ?? '';
  if (state === 'pending' || state === 'running') query.state = state;
  else if (state !== '') query.status = state;
  const caller = textOf(filters, 'caller');
  if (caller) query.caller = caller;
  const origin = ORIGINS.find((name) => name === filters.get('origin'));
  if (origin) query.origin = origin;
  const since = filters.get('since') ?? '';
  if (Object.hasOwn(SINCE_HOURS, since)) {
    // Rounded to a minute, so that the same view asks the same question.
    const from = Math.floor((now - SINCE_HOURS[since]! * 3_600_000) / 60_000) * 60_000;
    query.since = new Date(from).toISOString();
  } else if (isDate(since)) query.since = new Date(since).toISOString();
  return query;
}

/** The longest text that the server accepts as a filter. */
export const MAX_CHARACTERS = 200;

/** A filter that is text; more of it than the server accepts is left out. */
export function textOf(filters: URLSearchParams, name: string): string {
  return (filters.get(name) ?? '').trim().slice(0, MAX_CHARACTERS);
}

/** Whether a text is a date with a year of four digits, which is what the server reads. */
function isDate(text: string): boolean {
  const time = Date.parse(text);
  return !Number.isNaN(time) && /^\d{4}-/.test(new Date(time).toISOString());
}

const NAMES = ['skill', 'state', 'status', 'caller', 'origin', 'since'];

export function hasFilters(filters: URLSearchParams): boolean {
  return NAMES.some((name) => (filters.get(name) ?? '') !== '');
}
