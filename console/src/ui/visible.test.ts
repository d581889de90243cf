import { expect, test } from 'vitest';

import { visible } from './visible';

test('invisible characters of a name are shown', () => {
  expect(visible('invoice\u202Efdp.exe')).toBe('invoice‹U+202E›fdp.exe');
  expect(visible('a\u200bb\u0000c\nd')).toBe('a‹U+200B›b‹U+0000›c‹U+000A›d');
  expect(visible('\ud800')).toBe('‹U+D800›');
  expect(visible('\u{E0041}')).toBe('‹U+E0041›');
});

test('ordinary names stay as they are', () => {
  for (const name of ['scripts/execute.py', '发票 提取.md', 'naïve.txt', '👩‍💻.png']) expect(visible(name)).toBe(name);
});
