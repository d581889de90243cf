import { expect, test } from 'vitest';

import { filled, lastDays, monday } from './days';

const NOW = Date.parse('2026-03-02T23:30:00Z'); // a Monday

test('days end today, in UTC', () => {
  expect(lastDays(3, 'day', NOW)).toEqual(['2026-02-28', '2026-03-01', '2026-03-02']);
});

test('weeks go by their Monday', () => {
  expect(monday('2026-03-01')).toBe('2026-02-23');
  expect(monday('2026-03-02')).toBe('2026-03-02');
  expect(lastDays(8, 'week', NOW)).toEqual(['2026-02-23', '2026-03-02']);
});

test('days without a value count 0', () => {
  expect(filled(['2026-03-01', '2026-03-02'], [{ date: '2026-03-02', count: 4 }])).toEqual([0, 4]);
});
