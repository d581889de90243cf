import { expect, test } from 'vitest';

import { countOf, filtersOf, parametersOf, tagsOf, toggled } from './filters';

const of = (address: string) => filtersOf(new URLSearchParams(address));

test('an empty address has no filters and asks for the first page by name', () => {
  expect(countOf(of(''))).toBe(0);
  expect(parametersOf(of(''))).toEqual({ sort: 'name', page: 1, limit: 50 });
});

test('every filter of the address reaches the server', () => {
  const filters = of('q=%20pdf%20&tags=a,b,,a&mode=direct&state=off&health=access&plugin=p&source=s&sort=calls&page=3');
  expect(parametersOf(filters)).toEqual({
    query: 'pdf',
    tags: 'a,b',
    mode: 'direct',
    enabled: false,
    health: 'access',
    plugin: 'p',
    source: 's',
    sort: 'calls',
    page: 3,
    limit: 50,
  });
  expect(countOf(filters)).toBe(8);
});

test('values that mean nothing are ignored', () => {
  const filters = of('mode=rocket&state=maybe&health=ill&sort=random&page=-4');
  expect(parametersOf(filters)).toEqual({ sort: 'name', page: 1, limit: 50 });
  for (const page of ['0', '1.5', 'x', '1e99', 'NaN']) expect(of(`page=${page}`).page).toBe(1);
  expect(of('page=1e9').page).toBe(1_000_000); // the last one that the server accepts
});

test('a long text is cut to what the server accepts', () => {
  expect(parametersOf(of(`q=${'x'.repeat(999)}`)).query).toHaveLength(200);
});

test('tags are added and removed', () => {
  expect(tagsOf(null)).toEqual([]);
  expect(toggled(['a'], 'b')).toEqual(['a', 'b']);
  expect(toggled(['a', 'b'], 'a')).toEqual(['b']);
});
