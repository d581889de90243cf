/** JSON with line breaks, token by token: no number is rounded and no repeated name is lost. */
const TOKEN = /"(?:[^"\\]|\\[^])*"?|[{}[\],:]|[^\s"{}[\],:]+/g;
const MAX_DEPTH = 100;

export function indented(text: string): string {
  let shown = '';
  let depth = 0;
  const line = (): string => `\n${'  '.repeat(Math.min(Math.max(depth, 0), MAX_DEPTH))}`;
  let before = '';
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === '}' || token === ']') {
      depth -= 1;
      shown += (before === '{' || before === '[' ? '' : line()) + token;
    } else {
      if (before === '{' || before === '[') shown += line();
      shown += token;
      if (token === ',') shown += line();
      else if (token === ':') shown += ' ';
      else if (token === '{' || token === '[') depth += 1;
    }
    before = token;
  }
  return shown;
}

/** The text with line breaks if it is JSON, else as it is. */
export function indentedIfJson(text: string): string {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indented(text);
}
