import { expect, test } from 'vitest';

import { rankChange } from './ranks';

test('places up and down', () => {
  expect(rankChange(7, 2)).toEqual({ move: 'up', by: 5 });
  expect(rankChange(1, 3)).toEqual({ move: 'down', by: 2 });
  expect(rankChange(2, 2)).toEqual({ move: 'same', by: 0 });
});

test('found and lost', () => {
  expect(rankChange(null, 4).move).toBe('found');
  expect(rankChange(4, null).move).toBe('lost');
  expect(rankChange(null, null).move).toBe('absent');
});
