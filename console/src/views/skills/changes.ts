/** Changes of several skills at once. */
import { api, take } from '../../api/client';
import { asApiError } from '../../api/errors';
import type { BulkAction, BulkResult } from './types';

/** The most names of one request. */
const MAX_NAMES = 500;

export async function changeAll(action: BulkAction, names: readonly string[]): Promise<BulkResult[]> {
  const results: BulkResult[] = [];
  for (let from = 0; from < names.length; from += MAX_NAMES) {
    const body = { action, names: names.slice(from, from + MAX_NAMES) };
    const answer = await take(api.POST('/api/skills/bulk', { body }));
    results.push(...answer.results);
  }
  return results;
}

/** Bring removed skills back, one after the other. */
export async function restoreAll(names: readonly string[]): Promise<BulkResult[]> {
  const results: BulkResult[] = [];
  for (const name of names) {
    try {
      await take(api.POST('/api/skills/{name}/restore', { params: { path: { name } } }));
      results.push({ name, success: true, error: null, restorable: false });
    } catch (error) {
      const { code, message } = asApiError(error);
      results.push({ name, success: false, error: { code, message }, restorable: false });
    }
  }
  return results;
}

/** What failed, as lines of text; at most five of them. */
export function failuresOf(results: readonly BulkResult[]): string[] {
  const failed = results.filter((result) => !result.success);
  const lines = failed.slice(0, 5).map((result) => `${result.name}: ${result.error?.message ?? ''}`);
  return failed.length > lines.length ? [...lines, '…'] : lines;
}
