/** The filters of the list of skills: how they are written in the address, and what the server is asked for. */
import { pageOf } from '../../app/pages';

export const LIMIT = 50;
export const SORTS = ['name', '-name', 'updated', 'installed', 'calls', 'failures'] as const;
export const HEALTHS = ['warnings', 'access', 'packages', 'confirm'] as const;

export type Sort = (typeof SORTS)[number];
export type Health = (typeof HEALTHS)[number];

export interface Filters {
  q: string;
  tags: string[];
  mode: '' | 'sandbox' | 'direct';
  state: '' | 'on' | 'off';
  health: '' | Health;
  plugin: string;
  source: string;
  sort: Sort;
  page: number;
}

function oneOf<T extends string>(value: string | null, allowed: readonly T[]): T | undefined {
  return allowed.find((each) => each === value);
}

/** The filters of an address. What was typed there by hand and means nothing is ignored. */
export function filtersOf(query: URLSearchParams): Filters {
  return {
    q: query.get('q') ?? '',
    tags: tagsOf(query.get('tags')),
    mode: oneOf(query.get('mode'), ['sandbox', 'direct']) ?? '',
    state: oneOf(query.get('state'), ['on', 'off']) ?? '',
    health: oneOf(query.get('health'), HEALTHS) ?? '',
    plugin: query.get('plugin') ?? '',
    source: query.get('source') ?? '',
    sort: oneOf(query.get('sort'), SORTS) ?? 'name',
    page: pageOf(query),
  };
}

/** Tags as the address has them, with commas between them. */
export function tagsOf(text: string | null): string[] {
  const tags = (text ?? '').split(',').map((tag) => tag.trim());
  return [...new Set(tags.filter((tag) => tag !== ''))];
}

/** The tags with this one added, or removed if it is among them. */
export function toggled(tags: readonly string[], tag: string): string[] {
  return tags.includes(tag) ? tags.filter((each) => each !== tag) : [...tags, tag];
}

/** How many filters are set; the order and the page are none. */
export function countOf(filters: Filters): number {
  const { q, tags, mode, state, health, plugin, source } = filters;
  return [q.trim(), mode, state, health, plugin, source].filter((value) => value !== '').length + tags.length;
}

/** The longest text that the server accepts as a filter. */
export const MAX_QUERY_CHARACTERS = 200;

/** The parameters of `GET /api/skills`. */
export function parametersOf(filters: Filters) {
  const { q, tags, mode, state, health, plugin, source, sort, page } = filters;
  return {
    query: q.trim().slice(0, MAX_QUERY_CHARACTERS) || undefined,
    tags: tags.join(',') || undefined,
    mode: mode || undefined,
    enabled: state === '' ? undefined : state === 'on',
    health: health || undefined,
    plugin: plugin || undefined,
    source: source || undefined,
    sort,
    page,
    limit: LIMIT,
  };
}
