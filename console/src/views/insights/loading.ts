/** What the tables of this view load and save. */
import { saveBlob } from '../../api/client';
import { csvBlob, type Cell } from '../../ui/chart/csv';
import { toasts } from '../../ui/toasts.svelte';

export { api, take } from '../../api/client';

/** Runs come in bursts, and figures of many runs are worth a question to the server only now and then. */
export const PAUSE_MS = 2000;
/** The most entries that the server sends at once. */
const PAGE_ENTRIES = 500;

type Rows = readonly (readonly Cell[])[];

/** Every entry of a list that the server sends by pages. */
export async function everyPage<T>(load: (query: { page: number; limit: number }) => Promise<T[]>): Promise<T[]> {
  const all: T[] = [];
  for (let page = 1; ; page += 1) {
    const entries = await load({ page, limit: PAGE_ENTRIES });
    all.push(...entries);
    if (entries.length < PAGE_ENTRIES) return all;
  }
}

/** Save a table, or say why it could not be loaded. */
export async function saveCsv(title: string, head: readonly string[], rows: Rows | Promise<Rows>): Promise<void> {
  try {
    saveBlob(csvBlob(head, await rows), `${title}.csv`);
  } catch (error) {
    toasts.fail(error);
  }
}
