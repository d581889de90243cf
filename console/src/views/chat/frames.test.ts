import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { byFrame } from './frames';

let frames: (() => void)[] = [];

beforeEach(() => {
  frames = [];
  vi.stubGlobal('requestAnimationFrame', (run: () => void) => frames.push(run));
  vi.stubGlobal('cancelAnimationFrame', () => undefined);
});
afterEach(() => vi.unstubAllGlobals());

it('hands on a bounded number of items a frame, in their order', async () => {
  const handed: number[][] = [];
  const gathered = byFrame<number>((items) => handed.push(items), 2);
  for (const item of [1, 2, 3]) gathered.add(item);
  expect(handed).toEqual([]);
  const drained = gathered.drained();
  frames.shift()!();
  expect(handed).toEqual([[1, 2]]);
  frames.shift()!();
  await drained;
  expect(handed).toEqual([[1, 2], [3]]);
});

it('hands on everything at once when it is asked to', () => {
  const handed: number[][] = [];
  const gathered = byFrame<number>((items) => handed.push(items), 2);
  for (const item of [1, 2, 3]) gathered.add(item);
  gathered.flush();
  gathered.flush();
  expect(handed).toEqual([[1, 2, 3]]);
});
