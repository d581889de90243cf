/** The record of a run, without its output where that is long: the events bring it. */
import { check, send, saveBlob, type Schemas } from '../../api/client';
import { readEvents } from '../../api/sse';
import { withoutStreams } from '../../ui/output/result';

export type RunRecord = Schemas['RunDetail'] & {
  origin?: { kind: string; id?: string | null } | null;
};

const LONG = 200_000;

export async function readRecord(id: string, signal?: AbortSignal): Promise<RunRecord> {
  const response = await check(await send(`/api/executions/${encodeURIComponent(id)}`, { signal }));
  const text = await response.text();
  return JSON.parse(text.length > LONG ? withoutStreams(text) : text) as RunRecord;
}

export function filePath(id: string, path: string): string {
  return `/api/executions/${encodeURIComponent(id)}/files/${path.split('/').map(encodeURIComponent).join('/')}`;
}

/** Save everything that a run printed so far, both streams in their order. */
export async function saveOutput(id: string, name: string): Promise<void> {
  const parts: string[] = [];
  const response = await send(`/api/executions/${encodeURIComponent(id)}/events?follow=false`);
  for await (const { event, data } of readEvents(response)) {
    if (event === 'stdout' || event === 'stderr') parts.push(JSON.parse(data) as string);
  }
  saveBlob(new Blob(parts, { type: 'text/plain' }), name);
}
