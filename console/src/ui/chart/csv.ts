/** Tables as CSV files (RFC 4180). */
export type Cell = string | number | null | undefined;

/** A spreadsheet would take a text that begins like this for a formula. */
const FORMULA = /^[=+\-@\t\r]/;

function cell(value: Cell): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(head: readonly string[], rows: readonly (readonly Cell[])[]): string {
  return [head, ...rows].map((row) => `${row.map(cell).join(',')}\r\n`).join('');
}

/** The file that is saved. The mark at its start makes spreadsheets read it as UTF-8. */
export function csvBlob(head: readonly string[], rows: readonly (readonly Cell[])[]): Blob {
  return new Blob(['\ufeff', toCsv(head, rows)], { type: 'text/csv;charset=utf-8' });
}
