/** Server-sent events over `fetch`, because `EventSource` cannot send an API key. */
import { createParser, type EventSourceMessage } from 'eventsource-parser';

import { check, send } from './client';
import { asApiError, isAbort, type ApiError } from './errors';

/** Events that have arrived are handled for this long; then the page draws and reacts before it goes on. */
const TASK_MS = 20;

/** The events of one response. */
export async function* readEvents(response: Response): AsyncGenerator<EventSourceMessage> {
  await check(response);
  if (response.body === null) return;
  const ready: EventSourceMessage[] = [];
  const parser = createParser({ onEvent: (event) => ready.push(event) });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let began = performance.now();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      parser.feed(value);
      for (const event of ready.splice(0)) {
        yield event;
        if (performance.now() - began < TASK_MS) continue;
        await nextTask();
        began = performance.now();
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/** Resolves in a task of its own, after those that wait already. Timers would be slow in a hidden page. */
function nextTask(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

export interface Following {
  signal: AbortSignal;
  onEvent: (event: EventSourceMessage) => void;
  /** The connection is open (null), or was lost: the next try is at this time, in milliseconds since 1970. */
  onConnection?: (retryAt: number | null, error: ApiError | null) => void;
  /** Whether this event is the last one, so that an end of the stream is no loss of the connection. */
  isLast?: (event: EventSourceMessage) => boolean;
  /** The number of the last event that is known already. */
  after?: string;
}

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

/** Follow a stream to its end. Continues after the last event where the connection was lost. */
export async function follow(path: string, { signal, onEvent, onConnection, isLast, after }: Following): Promise<void> {
  let last = after ?? '';
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    let failure: ApiError | null = null;
    try {
      const headers: Record<string, string> = { Accept: 'text/event-stream' };
      if (last !== '') headers['Last-Event-ID'] = last;
      const response = await check(await send(path, { headers, signal }));
      onConnection?.(null, null);
      pause = FIRST_PAUSE_MS;
      for await (const event of readEvents(response)) {
        if (event.id !== undefined) last = event.id;
        onEvent(event);
        if (isLast?.(event)) return;
      }
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      failure = asApiError(error);
      if (failure.status >= 400 && failure.status < 500 && failure.status !== 429) throw failure;
    }
    if (signal.aborted) return;
    onConnection?.(Date.now() + pause, failure);
    await wait(pause, signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

function wait(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    const early = () => {
      clearTimeout(timer);
      resolve();
    };
    signal.addEventListener('abort', early, { once: true });
    window.addEventListener('online', early, { once: true });
  });
}
