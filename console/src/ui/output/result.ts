/** The result of a run, without its output where that is long: the page has it already, and parsing it takes time. */
import type { Schemas } from '../../api/client';

const LONG = 200_000;
const STREAMS = ['stdout', 'stderr', 'output'];

export function resultOf(document: string): Schemas['ExecutionResult'] {
  return JSON.parse(document.length > LONG ? withoutStreams(document) : document) as Schemas['ExecutionResult'];
}

/** A JSON document with the values of the streams emptied. */
export function withoutStreams(document: string): string {
  let text = document;
  for (const name of STREAMS) {
    const mark = `"${name}":"`;
    // Inside a string a quotation mark has a backslash before it, so the mark is found only where a field begins.
    const start = text.indexOf(mark);
    if (start === -1) continue;
    const from = start + mark.length;
    text = text.slice(0, from) + text.slice(endOfString(text, from));
  }
  return text;
}

/** The position of the quotation mark that ends a string. */
function endOfString(text: string, from: number): number {
  for (let end = text.indexOf('"', from); end !== -1; end = text.indexOf('"', end + 1)) {
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === 0x5c) backslashes += 1;
    if (backslashes % 2 === 0) return end;
  }
  return text.length;
}
