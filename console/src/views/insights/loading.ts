/** What the tables of this view load and save. */
import { saveBlob } from '../../api/client';
import { csvBlob, type Cell } from '../../ui/chart/csv';

export { api, take } from '../../api/client';

export function saveCsv(title: string, head: readonly string[], rows: readonly (readonly Cell[])[]): void {
  saveBlob(csvBlob(head, rows), `${title}.csv`);
}
