import { expect, it } from 'vitest';

import { hasFilters, queryOf } from './filters';

const NOW = Date.parse('2026-01-02T03:04:05Z');
const query = (text: string) => queryOf(new URLSearchParams(text), NOW);

it('reads the filters of an address', () => {
  expect(query('')).toEqual({ page: 1, limit: 50 });
  expect(query('skill=pdf&state=running&origin=chat&page=3')).toEqual({
    skill: 'pdf',
    state: 'running',
    origin: 'chat',
    page: 3,
    limit: 50,
  });
  expect(query('status=timeout')).toEqual({ status: 'timeout', page: 1, limit: 50 });
  expect(query('since=24h').since).toBe('2026-01-01T03:04:00.000Z');
});

it('takes no nonsense from an address', () => {
  expect(query('page=-1&origin=moon&since=never')).toEqual({ page: 1, limit: 50 });
  expect(query('page=x').page).toBe(1);
});

it('knows whether there are any', () => {
  expect(hasFilters(new URLSearchParams('page=2'))).toBe(false);
  expect(hasFilters(new URLSearchParams('since=1h'))).toBe(true);
});

it('ignores times that are none, and cuts long texts', () => {
  for (const since of ['constructor', 'toString', 'abc', '%2B275760-09-13', '-000001-01-01'])
    expect(query(`since=${since}`)).toEqual({ page: 1, limit: 50 });
  expect(query(`skill=${'x'.repeat(999)}`).skill).toHaveLength(200);
});
