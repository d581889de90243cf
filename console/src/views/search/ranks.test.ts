import { expect, test } from 'vitest';

import { differenceOf, keyOf, placesOf, shareOfRank } from './ranks';

test('places count from one, and a tool is not the skill of the same name', () => {
  const places = placesOf([
    { kind: 'skill', name: 'a' },
    { kind: 'tool', name: 'a' },
  ]);
  expect(places.get(keyOf({ kind: 'skill', name: 'a' }))).toBe(1);
  expect(places.get(keyOf({ kind: 'tool', name: 'a' }))).toBe(2);
});

test('a difference says how many places better or worse', () => {
  expect(differenceOf(1, 3)).toEqual({ kind: 'up', places: 2 });
  expect(differenceOf(4, 3)).toEqual({ kind: 'down', places: 1 });
  expect(differenceOf(2, 2)).toEqual({ kind: 'same' });
  expect(differenceOf(2, undefined)).toEqual({ kind: 'only' });
});

test('the bar of a rank is full for the first and empty without a rank', () => {
  expect([1, 2, 4, null, undefined].map(shareOfRank)).toEqual([1, 0.5, 0.25, 0, 0]);
});
