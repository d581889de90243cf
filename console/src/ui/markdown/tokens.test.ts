import { Lexer } from 'marked';
import { describe, expect, it } from 'vitest';

import { lex, safeHref } from './tokens';

describe('tokens of Markdown', () => {
  it('are those of the lexer', () => {
    const text =
      '# Title\r\n\nSome *words* and `code`.\n\n- a\n- [x] b\n\n| a |\n|---|\n| b |\n\n[link]: https://example.org\n[link]';
    expect(lex(text)).toEqual([...new Lexer({ gfm: true }).lex(text)]);
  });

  it('are the same objects for blocks and items that did not change', () => {
    const before = lex('one\n\n- a\n- b\n');
    const after = lex('one\n\n- a\n- b\n- c\n', before);
    expect(after[0]).toBe(before[0]);
    expect(after.at(-1)).not.toBe(before.at(-1));
    const items = (tokens: typeof after) => (tokens.at(-1) as { items: unknown[] }).items;
    expect(items(after)[0]).toBe(items(before)[0]);
    expect(items(after)).toHaveLength(3);
  });

  it('leave a paragraph with too many marks as it is', () => {
    for (const text of ['_'.repeat(30_000) + 'a', '*a'.repeat(20_000), '['.repeat(20_000), '`a``'.repeat(8000)]) {
      const [block] = lex(text);
      expect(block).toMatchObject({ type: 'paragraph', tokens: [{ type: 'text', text }] });
    }
  });

  it('have links to the web and to mail only', () => {
    expect(safeHref('https://example.org')).toBe('https://example.org');
    expect(safeHref(' JaVaScRiPt:alert(1)')).toBeUndefined();
    expect(safeHref('data:text/html,x')).toBeUndefined();
  });
});
