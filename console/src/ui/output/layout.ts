/** Lines as rows of equal height, so that only the rows in sight have to be drawn. */
import { parse, shownText, type Run } from './ansi';
import type { Line } from './lines';

/** A line is cut here until the user asks for all of it. */
export const CUT_CHARACTERS = 4000;
const TAB = 8;
/** Every character takes one column. */
const SIMPLE = /^[\u0020-\u02ff]*$/;

/** What a character takes: `wide` is the width of a Chinese character, in columns of a Latin one. */
export interface Columns {
  count: number;
  wide: number;
}

interface Measured {
  length: number;
  isWhole: boolean;
  columns: Columns;
  /** Its text with colours, once it has been drawn. */
  runs?: Run[];
  /** Where each row starts; null for a simple text, where every row has the same number of characters. */
  starts: number[] | null;
  rows: number;
}

export class Layout {
  #columns: Columns = { count: 80, wide: 2 };
  #measured = new WeakMap<Line, Measured>();
  #whole = new WeakSet<Line>();

  get columns(): Columns {
    return this.#columns;
  }

  set columns(columns: Columns) {
    if (columns.count !== this.#columns.count || columns.wide !== this.#columns.wide) this.#columns = columns;
  }

  showWhole(line: Line): void {
    this.#whole.add(line);
  }

  isCut(line: Line): boolean {
    return line.text.length > CUT_CHARACTERS && !this.#whole.has(line);
  }

  /** How many rows a line takes, one more if it is cut: for the button. */
  rowsOf(line: Line): number {
    return this.#measure(line).rows + (this.isCut(line) ? 1 : 0);
  }

  /** How many rows its text takes. */
  textRowsOf(line: Line): number {
    return this.#measure(line).rows;
  }

  /** The parts of some rows of a line. */
  rows(line: Line, from: number, to: number): Run[][] {
    const measured = this.#measure(line);
    const runs = (measured.runs ??= expandTabs(parse(this.#raw(line), line.style).runs));
    const startOf = (row: number): number =>
      measured.starts === null ? row * this.#columns.count : (measured.starts[row] ?? Infinity);
    const rows: Run[][] = [];
    for (let row = from; row < Math.min(to, measured.rows); row += 1) {
      rows.push(slice(runs, startOf(row), startOf(row + 1)));
    }
    return rows;
  }

  #measure(line: Line): Measured {
    const isWhole = !this.isCut(line);
    const known = this.#measured.get(line);
    if (known?.length === line.text.length && known.isWhole === isWhole && known.columns === this.#columns) {
      return known;
    }
    const [shown] = expandTabs([{ text: shownText(this.#raw(line)), classes: '' }]);
    const starts = SIMPLE.test(shown!.text) ? null : wrap(shown!.text, this.#columns);
    const rows = starts?.length ?? Math.max(1, Math.ceil(shown!.text.length / this.#columns.count));
    const measured = { length: line.text.length, isWhole, columns: this.#columns, starts, rows };
    this.#measured.set(line, measured);
    return measured;
  }

  /** Its text, or the part of it that is shown. */
  #raw(line: Line): string {
    return this.isCut(line) ? line.text.slice(0, cutAt(line.text, CUT_CHARACTERS)) : line.text;
  }
}

/** The start of each row of a text. */
export function wrap(text: string, { count, wide }: Columns): number[] {
  const starts = [0];
  let used = 0;
  for (let index = 0; index < text.length;) {
    const code = text.codePointAt(index)!;
    const width = code < 0x300 ? 1 : isZeroWidth(code) ? 0 : isWide(code) ? wide : 1;
    if (used + width > count && used > 0) {
      starts.push(index);
      used = 0;
    }
    used += width;
    index += code > 0xffff ? 2 : 1;
  }
  return starts;
}

function slice(runs: readonly Run[], from: number, to: number): Run[] {
  const parts: Run[] = [];
  let start = 0;
  for (const run of runs) {
    const end = start + run.text.length;
    if (end > from && start < to) {
      parts.push({ text: run.text.slice(Math.max(0, from - start), to - start), classes: run.classes });
    }
    if (end >= to) break;
    start = end;
  }
  return parts;
}

function expandTabs(runs: Run[]): Run[] {
  let column = 0;
  for (const run of runs) {
    if (run.text.includes('\t')) {
      let text = '';
      for (const part of run.text.split(/(\t)/)) {
        const piece = part === '\t' ? ' '.repeat(TAB - (column % TAB)) : part;
        text += piece;
        column += piece.length;
      }
      run.text = text;
    } else {
      column += run.text.length;
    }
  }
  return runs;
}

/** Not between the two halves of a character. */
function cutAt(text: string, index: number): number {
  const code = text.charCodeAt(index - 1);
  return code >= 0xd800 && code <= 0xdbff ? index - 1 : index;
}

function isZeroWidth(code: number): boolean {
  return (
    (code >= 0x300 && code <= 0x36f) ||
    (code >= 0x200b && code <= 0x200f) ||
    (code >= 0x20d0 && code <= 0x20ff) ||
    (code >= 0xfe00 && code <= 0xfe0f) ||
    code === 0x2060 ||
    code === 0xfeff
  );
}

function isWide(code: number): boolean {
  return (
    (code >= 0x1100 && code <= 0x115f) ||
    (code >= 0x2e80 && code <= 0xa4cf) ||
    (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) ||
    (code >= 0xfe30 && code <= 0xfe6f) ||
    (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0xffe0 && code <= 0xffe6) ||
    (code >= 0x1f000 && code <= 0x1faff) ||
    (code >= 0x20000 && code <= 0x3fffd)
  );
}
