/** Rows of a CSV file (RFC 4180), as far as they are shown. */
export interface Table {
  rows: string[][];
  /** Of the text, also those that are not in `rows`. */
  total: number;
  columns: number;
}

const DELIMITERS = [',', ';', '\t', '|'];

function delimiterOf(text: string): string {
  const first = text.slice(0, 2000).split('\n', 1)[0] ?? '';
  const counts = DELIMITERS.map((delimiter) => first.split(delimiter).length);
  return DELIMITERS[counts.indexOf(Math.max(...counts))]!;
}

/** The first rows of a text with at most `limit` rows and `columns` columns. */
export function readTable(text: string, limit: number, columns: number): Table {
  const delimiter = delimiterOf(text);
  const rows: string[][] = [];
  let row: string[] = [];
  let total = 0;
  let most = 0;
  let count = 0;
  let index = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  const cell = (value: string): void => {
    count += 1;
    if (total < limit && count <= columns) row.push(value);
  };
  while (index < text.length) {
    let value = '';
    if (text[index] === '"') {
      for (;;) {
        const end = text.indexOf('"', index + 1);
        value += text.slice(index + 1, end === -1 ? undefined : end);
        index = end === -1 ? text.length : end + 1;
        if (text[index] !== '"') break;
        value += '"';
      }
    }
    let end = index;
    while (end < text.length && text[end] !== delimiter && text[end] !== '\n' && text[end] !== '\r') end += 1;
    cell(value + text.slice(index, end));
    index = end;
    if (text[index] === delimiter) {
      index += 1;
      if (index < text.length && text[index] !== '\n' && text[index] !== '\r') continue;
      cell('');
    }
    if (text[index] === '\r') index += 1;
    if (text[index] === '\n') index += 1;
    most = Math.max(most, count);
    if (total < limit) rows.push(row);
    total += 1;
    row = [];
    count = 0;
  }
  return { rows, total, columns: most };
}
