/** A unified diff as lines with their numbers. */
export type DiffLineKind = 'added' | 'removed' | 'same' | 'hunk' | 'note';

export interface DiffLine {
  kind: DiffLineKind;
  /** Line numbers before and after; null where there is none. */
  before: number | null;
  after: number | null;
  text: string;
}

export interface DiffCount {
  added: number;
  removed: number;
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)$/;
const KINDS: Record<string, DiffLineKind> = { '+': 'added', '-': 'removed', ' ': 'same', '': 'same' };

/** The lines of the hunks. What is before the first hunk, such as file names, is left out. */
export function diffLines(text: string): DiffLine[] {
  const lines: DiffLine[] = [];
  const [position, remaining] = [
    { before: 0, after: 0 },
    { before: 0, after: 0 },
  ];
  for (const line of text.split('\n')) {
    const isOpen = remaining.before > 0 || remaining.after > 0;
    const hunk = isOpen ? null : HUNK.exec(line);
    if (hunk) {
      position.before = Number(hunk[1]);
      position.after = Number(hunk[3]);
      remaining.before = Number(hunk[2] ?? 1);
      remaining.after = Number(hunk[4] ?? 1);
      lines.push({ kind: 'hunk', before: null, after: null, text: line });
    } else if (line.startsWith('\\')) {
      lines.push({ kind: 'note', before: null, after: null, text: line.slice(1).trim() });
    } else if (isOpen) {
      const kind = KINDS[line.slice(0, 1)] ?? 'same';
      const hasBefore = kind !== 'added';
      const hasAfter = kind !== 'removed';
      lines.push({
        kind,
        before: hasBefore ? position.before++ : null,
        after: hasAfter ? position.after++ : null,
        text: line.slice(1),
      });
      if (hasBefore) remaining.before -= 1;
      if (hasAfter) remaining.after -= 1;
    }
  }
  return lines;
}

export function countChanges(lines: readonly DiffLine[]): DiffCount {
  const count = { added: 0, removed: 0 };
  for (const { kind } of lines) if (kind === 'added' || kind === 'removed') count[kind] += 1;
  return count;
}
