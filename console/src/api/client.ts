/** The typed client of the server's HTTP API. Its types are generated from the OpenAPI document. */
import createClient from 'openapi-fetch';

import { asApiError, connectionClosed, errorFrom } from './errors';
import { keyHolder } from './key.svelte';
import type { components, paths } from './schema';

export type Schemas = components['schemas'];

/** Where the page came from, so that it works behind any path prefix. */
export const BASE = new URL('.', document.baseURI).href.replace(/\/$/, '');

/** `fetch` with the API key. A refused key is reported to the key holder, which asks for another one. */
export async function send(input: string | Request, init: RequestInit = {}): Promise<Response> {
  const request = new Request(typeof input === 'string' && input.startsWith('/') ? BASE + input : input, init);
  if (keyHolder.key !== '') request.headers.set('Authorization', `Bearer ${keyHolder.key}`);
  const used = keyHolder.key;
  let response: Response;
  try {
    response = await fetch(request);
  } catch (error) {
    if (request.signal.aborted) throw error;
    throw asApiError(error);
  }
  if (response.status === 401) keyHolder.refused(used);
  return response;
}

export const api = createClient<paths>({ baseUrl: BASE, fetch: (request) => send(request) });

type Answer<T> = Promise<{ data?: T; error?: unknown; response: Response }>;

/** The data of an answer; throws an ApiError unless it is a success. */
export async function take<T>(answer: Answer<T>): Promise<T> {
  const { data, error, response } = await answer;
  if (response.ok) return data as T;
  throw errorFrom(response.status, error);
}

/** Throw an ApiError unless the response is a success. */
export async function check(response: Response): Promise<Response> {
  if (response.ok) return response;
  const text = await response.text();
  let body: unknown = text;
  try {
    body = JSON.parse(text);
  } catch {
    // not JSON: the text is the message
  }
  throw errorFrom(response.status, body);
}

export interface FilePart {
  blob: Blob;
  /** The size of the whole file, if the server said so. */
  size: number;
  isWhole: boolean;
}

/** The first bytes of a file, at most `limit`. */
export async function readFilePart(path: string, limit: number, signal?: AbortSignal): Promise<FilePart> {
  const response = await send(path, { headers: { Range: `bytes=0-${limit - 1}` }, signal });
  if (response.status === 416) return { blob: new Blob([]), size: 0, isWhole: true };
  await check(response);
  const total = Number(response.headers.get('Content-Range')?.split('/')[1]);
  const blob = await response.blob();
  const size = response.status === 206 && Number.isFinite(total) ? total : blob.size;
  return { blob: blob.size > limit ? blob.slice(0, limit) : blob, size, isWhole: size <= limit };
}

/** Save a file of the server: it is fetched with the key, which a plain link cannot send. */
export async function download(path: string, name: string): Promise<void> {
  const blob = await (await check(await send(path))).blob();
  saveBlob(blob, name);
}

export function saveBlob(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export interface SentProgress {
  sent: number;
  total: number;
}

/** Send a file with progress, which `fetch` does not report. */
export function upload<T>(
  path: string,
  body: Blob | FormData,
  options: {
    headers?: Record<string, string>;
    onProgress?: (progress: SentProgress) => void;
    signal?: AbortSignal;
  } = {},
): Promise<T> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('POST', BASE + path);
    if (keyHolder.key !== '') request.setRequestHeader('Authorization', `Bearer ${keyHolder.key}`);
    for (const [name, value] of Object.entries(options.headers ?? {})) request.setRequestHeader(name, value);
    const used = keyHolder.key;
    request.upload.onprogress = (event) => options.onProgress?.({ sent: event.loaded, total: event.total });
    request.onerror = () => reject(connectionClosed());
    request.onabort = () => reject(new DOMException('aborted', 'AbortError'));
    request.onload = () => {
      let answer: unknown = request.responseText;
      try {
        answer = JSON.parse(request.responseText);
      } catch {
        // not JSON: the text is the message
      }
      if (request.status === 401) keyHolder.refused(used);
      if (request.status >= 200 && request.status < 300) resolve(answer as T);
      else reject(errorFrom(request.status, answer));
    };
    options.signal?.addEventListener('abort', () => request.abort());
    request.send(body);
  });
}
