import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { coalesced } from './coalesced';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test('a burst of calls acts at once and once more after it', () => {
  const act = vi.fn();
  const { call } = coalesced(act, 400);
  for (let count = 0; count < 100; count += 1) call();
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(400);
  expect(act).toHaveBeenCalledTimes(2);
  vi.advanceTimersByTime(4000);
  expect(act).toHaveBeenCalledTimes(2);
  call();
  expect(act).toHaveBeenCalledTimes(3);
});

test('nothing is called after its end', () => {
  const act = vi.fn();
  const { call, stop } = coalesced(act, 400);
  call();
  call();
  stop();
  vi.advanceTimersByTime(4000);
  expect(act).toHaveBeenCalledTimes(1);
});
