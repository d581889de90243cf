/** The YAML block at the start of a Markdown file, as a block of code: otherwise it would be drawn as a heading. */
const BLOCK = /^\ufeff?---[ \t]*\r?\n([\s\S]*?)\r?\n---[ \t]*(?:\r?\n|$)/;
const FENCE = '~'.repeat(20);

export function frontmatterAsCode(text: string): string {
  const block = BLOCK.exec(text);
  if (block === null || block[1]!.includes(FENCE)) return text;
  return `${FENCE}yaml\n${block[1]}\n${FENCE}\n\n${text.slice(block[0].length)}`;
}
