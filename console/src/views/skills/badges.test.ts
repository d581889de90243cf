import { expect, test } from 'vitest';

import { marksOf, successOf } from './badges';

const PLAIN = {
  mode: 'sandbox',
  enabled: true,
  dangerous: false,
  warningCount: 0,
  needsAccess: false,
  needsPackages: false,
} as const;

test('a healthy skill only says how it runs', () => {
  expect(marksOf(PLAIN)).toEqual([{ name: 'sandbox', tone: 'accent' }]);
  expect(marksOf({ ...PLAIN, mode: 'direct' })).toEqual([{ name: 'direct', tone: 'neutral' }]);
});

test('everything that needs attention has a mark', () => {
  const marks = marksOf({
    ...PLAIN,
    enabled: false,
    dangerous: true,
    warningCount: 3,
    needsAccess: true,
    needsPackages: true,
  });
  expect(marks.map((mark) => mark.name)).toEqual(['off', 'sandbox', 'confirm', 'access', 'packages', 'warnings']);
  expect(marks.at(-1)?.count).toBe(3);
});

test('the share of success needs a call', () => {
  expect(successOf({ calls: 0, failures: 0 })).toBeUndefined();
  expect(successOf({ calls: 4, failures: 1 })).toBe(0.75);
});
