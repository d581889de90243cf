/** Checking and installing over HTTP, with progress. */
import { send, upload, type SentProgress } from '../../../api/client';
import { connectionClosed, errorFrom } from '../../../api/errors';
import { readEvents } from '../../../api/sse';
import type { CheckReport, InstallReceipt, Progress } from './types';

const CHECK = '/api/skills/validate';
const INSTALL = '/api/skills/install';

/** Send an archive. The server checks it and keeps it for a while; nothing is installed. */
export function checkFile(
  file: File,
  onProgress: (progress: SentProgress) => void,
  signal: AbortSignal,
): Promise<CheckReport> {
  const query = new URLSearchParams({ filename: file.name });
  return upload(`${CHECK}?${query}`, file, { headers: { 'Content-Type': 'application/zip' }, onProgress, signal });
}

/** Let the server fetch a source and check it. */
export function checkSource(
  source: string,
  onProgress: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<CheckReport> {
  return streamed(CHECK, { source }, onProgress, signal);
}

/** Install what was checked. */
export function installChecked(
  checked: string,
  overwrite: boolean,
  onProgress: (progress: Progress) => void,
): Promise<InstallReceipt> {
  return streamed(INSTALL, { upload: checked, overwrite }, onProgress);
}

/** Fetch a source again and install it: if the server has not kept what it checked. */
export function installSource(
  source: string,
  overwrite: boolean,
  onProgress: (progress: Progress) => void,
): Promise<InstallReceipt> {
  return streamed(INSTALL, { source, overwrite }, onProgress);
}

/** Send an archive again and install it: if the server has not kept what it checked. */
export function installFile(
  file: File,
  overwrite: boolean,
  onProgress: (progress: SentProgress) => void,
): Promise<InstallReceipt> {
  const query = new URLSearchParams({ filename: file.name, overwrite: String(overwrite) });
  return upload(`${INSTALL}?${query}`, file, { headers: { 'Content-Type': 'application/zip' }, onProgress });
}

async function streamed<T>(
  path: string,
  body: object,
  onProgress: (progress: Progress) => void,
  signal?: AbortSignal,
): Promise<T> {
  const headers = { 'Content-Type': 'application/json', Accept: 'text/event-stream' };
  const response = await send(path, { method: 'POST', headers, body: JSON.stringify(body), signal });
  for await (const { event, data } of readEvents(response)) {
    const value: unknown = JSON.parse(data);
    if (event === 'progress') onProgress(value as Progress);
    else if (event === 'result') return value as T;
    else if (event === 'error') throw errorFrom(statusOf(value), value);
  }
  throw connectionClosed();
}

function statusOf(value: unknown): number {
  const status = (value as { status?: unknown }).status;
  return typeof status === 'number' ? status : 400;
}
