/** The record of a run, without its output: the events bring it. */
import { api, send, saveBlob, take, type Schemas } from '../../api/client';
import { readEvents } from '../../api/sse';

export type RunRecord = Schemas['RunDetail'];

export function readRecord(id: string, signal?: AbortSignal): Promise<RunRecord> {
  return take(api.GET('/api/executions/{id}', { params: { path: { id }, query: { output: false } }, signal }));
}

export function filePath(id: string, path: string): string {
  return `/api/executions/${encodeURIComponent(id)}/files/${path.split('/').map(encodeURIComponent).join('/')}`;
}

/** Save everything that a run printed so far, both streams in their order. */
export async function saveOutput(id: string, name: string): Promise<void> {
  const parts: string[] = [];
  const response = await send(`/api/executions/${encodeURIComponent(id)}/events?follow=false&output=false`);
  for await (const { event, data } of readEvents(response)) {
    if (event === 'stdout' || event === 'stderr') parts.push(JSON.parse(data) as string);
  }
  saveBlob(new Blob(parts, { type: 'text/plain' }), name);
}
