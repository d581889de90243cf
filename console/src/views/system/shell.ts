/** The words of a command as a shell reads them: quotes and backslashes keep spaces together, nothing is expanded. */
export function shellWords(command: string): string[] {
  const words: string[] = [];
  const part = /\s+|'([^']*)'?|"((?:[^"\\]|\\[^])*)"?|\\([^])|([^\s'"\\]+|\\$)/g;
  let isNew = true;
  for (const [whole, single, double, escaped, plain] of command.matchAll(part)) {
    if (/^\s/.test(whole) && escaped === undefined) {
      isNew = true;
      continue;
    }
    const text = single ?? double?.replace(/\\(["\\$`])/g, '$1') ?? escaped ?? plain ?? '';
    if (isNew) words.push(text);
    else words[words.length - 1] += text;
    isNew = false;
  }
  return words;
}

/** The same words as a command. */
export function quoted(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(' ');
}
