/** Colours and weights of terminal output. They become classes; all other escape sequences are dropped. */
import { HIDDEN, picture } from './control';

/** What the sequences so far have switched on. */
export interface Style {
  /** 0 to 7: black, red, green, yellow, blue, magenta, cyan, white; null for the colour of the text. */
  readonly front: number | null;
  readonly back: number | null;
  readonly bold: boolean;
  readonly dim: boolean;
  readonly italic: boolean;
  readonly underline: boolean;
  readonly strike: boolean;
  readonly inverse: boolean;
}

export const PLAIN: Style = {
  front: null,
  back: null,
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  strike: false,
  inverse: false,
};

/** A part of a text that looks the same. */
export interface Run {
  text: string;
  /** Of the page's own style sheet; empty for plain text. */
  classes: string;
}

// CSI … final byte; strings such as titles and links up to their end; two-character sequences. Unfinished ones, too.
const SEQUENCE =
  // eslint-disable-next-line no-control-regex
  /\u001b\[([0-9;:?<=>]*)[ -/]*([@-~]?)|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]?|\u009b([0-9;:?<=>]*)[ -/]*([@-~]?)/g;
const MAX_PARAMETERS = 32;
const RESET = '\u001b[0m';

/** Split a text at its escape sequences. Returns the parts with their classes, and the style after the text. */
export function parse(text: string, before: Style): { runs: Run[]; style: Style } {
  const runs: Run[] = [];
  let style = before;
  let from = 0;
  const add = (part: string): void => {
    if (part === '') return;
    const shown = part.replace(HIDDEN, picture);
    const classes = classesOf(style);
    const last = runs.at(-1);
    if (last?.classes === classes) last.text += shown;
    else runs.push({ text: shown, classes });
  };
  SEQUENCE.lastIndex = 0;
  for (let found = SEQUENCE.exec(text); found !== null; found = SEQUENCE.exec(text)) {
    add(text.slice(from, found.index));
    from = SEQUENCE.lastIndex;
    if (found[2] === 'm' || found[4] === 'm') style = changed(style, found[1] ?? found[3] ?? '');
  }
  add(text.slice(from));
  return { runs, style };
}

/** A text as it is shown, without its colours. */
export function shownText(text: string): string {
  return (hasSequence(text) ? text.replace(SEQUENCE, '') : text).replace(HIDDEN, picture);
}

/** The style after a text. */
export function styleAfter(text: string, before: Style): Style {
  if (!hasSequence(text)) return before;
  const reset = text.lastIndexOf(RESET);
  let style = reset === -1 ? before : PLAIN;
  for (const found of text.slice(Math.max(0, reset)).matchAll(SEQUENCE)) {
    if (found[2] === 'm' || found[4] === 'm') style = changed(style, found[1] ?? found[3] ?? '');
  }
  return style;
}

function hasSequence(text: string): boolean {
  return text.includes('\u001b') || text.includes('\u009b');
}

function changed(before: Style, parameters: string): Style {
  if (parameters === '0' || parameters === '') return PLAIN;
  const codes = parameters.split(/[;:]/, MAX_PARAMETERS).map(Number);
  let style = { ...before };
  for (let index = 0; index < codes.length; index += 1) {
    const code = codes[index]!;
    if (code === 0) style = { ...PLAIN };
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 9) style.strike = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code === 27) style.inverse = false;
    else if (code === 29) style.strike = false;
    else if (code === 39) style.front = null;
    else if (code === 49) style.back = null;
    else if (code >= 30 && code <= 37) style.front = code - 30;
    else if (code >= 40 && code <= 47) style.back = code - 40;
    else if (code >= 90 && code <= 97) style.front = code - 90;
    else if (code >= 100 && code <= 107) style.back = code - 100;
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes.slice(index + 1));
      if (code === 38) style.front = colour;
      else style.back = colour;
      index += used;
    }
  }
  return style;
}

/** A colour of 256, or of red, green and blue, as the nearest of the eight; and how many parameters it took. */
function extended(codes: number[]): [number | null, number] {
  const [kind, first = 0, second = 0, third = 0] = codes;
  if (kind === 5) {
    if (first < 16) return [first % 8, 2];
    if (first >= 232) return [null, 2]; // greys: the text's own colour can be read on every ground
    const cube = first - 16;
    return [nearest(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51), 2];
  }
  if (kind === 2) return [nearest(first, second, third), 4];
  return [null, 1];
}

function nearest(red: number, green: number, blue: number): number | null {
  const most = Math.max(red, green, blue);
  if (most - Math.min(red, green, blue) < 48) return null;
  const half = (most + Math.min(red, green, blue)) / 2;
  return (red > half ? 1 : 0) | (green > half ? 2 : 0) | (blue > half ? 4 : 0);
}

function classesOf(style: Style): string {
  if (style === PLAIN) return '';
  const classes: string[] = [];
  if (style.front !== null) classes.push(`front-${style.front}`);
  if (style.back !== null) classes.push(`back-${style.back}`);
  for (const name of ['bold', 'dim', 'italic', 'underline', 'strike', 'inverse'] as const) {
    if (style[name]) classes.push(name);
  }
  return classes.join(' ');
}
