/** The last lines of an output. Older ones are counted and let go, so that the page stays small. */
import { PLAIN, styleAfter, type Style } from './ansi';

export type Stream = 'stdout' | 'stderr';

export const MAX_LINES = 5000;
/** Of all lines together. */
export const MAX_CHARACTERS = 16_000_000;

export interface Line {
  /** From 1. */
  readonly number: number;
  readonly stream: Stream;
  text: string;
  /** The style at its start. */
  style: Style;
}

export class LineRing {
  lines: Line[] = [];
  /** How many older lines are no longer here. */
  dropped = 0;
  /** Of the lines that are here. */
  characters = 0;
  /** Of everything that was added. */
  readonly added: Record<Stream, number> = { stdout: 0, stderr: 0 };
  #count = 0;
  /** The line of each stream that has no line end yet. It grows where it is, also if the other stream writes. */
  #open: Partial<Record<Stream, Line>> = {};
  #styles: Record<Stream, Style> = { stdout: PLAIN, stderr: PLAIN };

  constructor(readonly limit = MAX_LINES) {}

  get isEmpty(): boolean {
    return this.#count === 0;
  }

  add(stream: Stream, text: string): void {
    this.added[stream] += text.length;
    let from = 0;
    while (from < text.length) {
      const end = text.indexOf('\n', from);
      const part = text.slice(from, end === -1 ? undefined : end);
      const line = this.#open[stream] ?? this.#start(stream);
      this.#append(line, part);
      if (end === -1) break;
      this.#close(line);
      from = end + 1;
    }
    this.#drop();
  }

  clear(): void {
    this.lines = [];
    this.dropped = this.characters = this.#count = 0;
    this.added.stdout = this.added.stderr = 0;
    this.#open = {};
    this.#styles = { stdout: PLAIN, stderr: PLAIN };
  }

  #start(stream: Stream): Line {
    const line: Line = { number: (this.#count += 1), stream, text: '', style: this.#styles[stream] };
    this.#open[stream] = line;
    this.lines.push(line);
    return line;
  }

  #append(line: Line, part: string): void {
    const before = line.text.length;
    line.text += part;
    // A carriage return writes over the line, as progress bars do. At the end it may belong to a line end.
    const start = line.text.lastIndexOf('\r', line.text.length - 2) + 1;
    if (start > 0) {
      line.style = styleAfter(line.text.slice(0, start), line.style);
      line.text = line.text.slice(start);
    }
    this.characters += line.text.length - before;
  }

  #close(line: Line): void {
    if (line.text.endsWith('\r')) {
      line.text = line.text.slice(0, -1);
      this.characters -= 1;
    }
    this.#styles[line.stream] = styleAfter(line.text, line.style);
    delete this.#open[line.stream];
  }

  #drop(): void {
    let excess = Math.max(0, this.lines.length - this.limit);
    let characters = 0;
    for (let index = 0; index < excess; index += 1) characters += this.lines[index]!.text.length;
    while (excess < this.lines.length - 1 && this.characters - characters > MAX_CHARACTERS) {
      characters += this.lines[excess]!.text.length;
      excess += 1;
    }
    if (excess === 0) return;
    this.lines.splice(0, excess);
    this.characters -= characters;
    this.dropped += excess;
  }
}
