import { expect, test, vi } from 'vitest';

vi.stubGlobal('location', { hash: '' });
vi.stubGlobal('window', { addEventListener: () => undefined });
const { resolvePath } = await import('./links');

test('relative links of a file', () => {
  expect(resolvePath('SKILL.md', 'references/format.md#top')).toBe('references/format.md');
  expect(resolvePath('references/a.md', '../scripts/x%20y.py')).toBe('scripts/x y.py');
  expect(resolvePath('references/a.md', './b.md')).toBe('references/b.md');
});

test('links that leave the skill', () => {
  for (const address of ['https://example.com', 'javascript:alert(1)', '/etc/passwd', '../../x', '%zz'])
    expect(resolvePath('a/SKILL.md', address)).toBeUndefined();
});
