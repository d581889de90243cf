import { expect, test } from 'vitest';

import { frontmatterAsCode } from './frontmatter';

test('frontmatter becomes a block of code', () => {
  const fence = '~'.repeat(20);
  expect(frontmatterAsCode('---\nname: x\n---\n# Title\n')).toBe(`${fence}yaml\nname: x\n${fence}\n\n# Title\n`);
  expect(frontmatterAsCode('---\r\nname: x\r\n---')).toBe(`${fence}yaml\nname: x\n${fence}\n\n`);
});

test('a text without frontmatter stays as it is', () => {
  for (const text of ['# Title', '---\nno end', 'a\n---\nb\n---\n', '']) expect(frontmatterAsCode(text)).toBe(text);
});
