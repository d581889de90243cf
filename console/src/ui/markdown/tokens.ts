/** Markdown as tokens that components draw. No HTML is made, so nothing of a text can become markup. */
import { Lexer, type Token, type Tokens } from 'marked';

export const MAX_DEPTH = 16;
const LINK = /^(?:https?:|mailto:)/i;

/**
 * Emphasis, links and code spans in one paragraph: the time to find their ends grows with the square of their number, so
 * a paragraph with more of them is shown as it is.
 */
const MAX_MARKS = 1000;
const MARK = /[*_`[\]~<]/g;

function hasTooManyMarks(text: string): boolean {
  let count = 0;
  for (const _ of text.matchAll(MARK)) if (++count > MAX_MARKS) return true;
  return false;
}

function lexAll(text: string): Token[] {
  const lexer = new Lexer({ gfm: true });
  const tokens = lexer.blockTokens(text.replace(/\r\n?/g, '\n'), lexer.tokens);
  for (const { src, tokens: inner } of lexer.inlineQueue) {
    if (hasTooManyMarks(src)) inner.push({ type: 'text', raw: src, text: src });
    else lexer.inlineTokens(src, inner);
  }
  return tokens;
}

/** The tokens of a text. Blocks that did not change since `before` are the same objects, so they are not drawn again. */
export function lex(text: string, before: readonly Token[] = []): Token[] {
  let tokens: Token[];
  try {
    tokens = lexAll(text);
  } catch {
    return [{ type: 'text', raw: text, text }]; // nested too deeply
  }
  return tokens.map((token, index) => unchanged(token, before[index]));
}

/** The earlier token if it is the same; of a list or table that grows, the same items or rows. */
function unchanged(token: Token, before: Token | undefined): Token {
  if (before === undefined || before.type !== token.type) return token;
  if (before.raw === token.raw) return before;
  if (token.type === 'table') {
    const [table, rows] = [token as Tokens.Table, (before as Tokens.Table).rows];
    table.rows = table.rows.map((row, index) =>
      rows[index]?.length === row.length && rows[index].every((cell, column) => cell.text === row[column]?.text)
        ? rows[index]
        : row,
    );
  }
  if (token.type !== 'list') return token;
  const [list, earlier] = [token as Tokens.List, (before as Tokens.List).items];
  list.items = list.items.map((item, index) => (earlier[index]?.raw === item.raw ? earlier[index] : item));
  return list;
}

/** The address of a link that may be followed; undefined for any other. */
export function safeHref(address: string): string | undefined {
  return LINK.test(address.trim()) ? address.trim() : undefined;
}

/** Text of a token with its entities replaced. */
export function plain(token: Token): string {
  return 'text' in token && typeof token.text === 'string' ? token.text : token.raw;
}
