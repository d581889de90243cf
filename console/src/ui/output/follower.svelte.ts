/** A run that is followed live: its state, its output, its result. Continues where a lost connection left off. */
import { api, take, type Schemas } from '../../api/client';
import { asApiError, isAbort, type ApiError } from '../../api/errors';
import { follow } from '../../api/sse';
import { OutputBuffer } from './buffer.svelte';
import type { Stream } from './lines';

export type RunState = 'pending' | 'running' | 'completed' | 'error';
export type RunResult = Schemas['ExecutionResult'];

export class RunFollower {
  readonly buffer = new OutputBuffer();
  state = $state<RunState>('pending');
  /** Without its output, which is in the buffer. */
  result = $state.raw<RunResult | undefined>();
  error = $state.raw<ApiError | undefined>();
  /** When a lost connection is tried again, in milliseconds since 1970. */
  retryAt = $state<number | null>(null);
  /** When the states were first seen here, in milliseconds since 1970. */
  seen = $state.raw<Partial<Record<RunState, number>>>({});
  #stop = new AbortController();

  constructor(readonly id: string) {
    void this.#follow();
  }

  get hasEnded(): boolean {
    return this.state === 'completed' || this.state === 'error';
  }

  /** End the connection. The run itself goes on. */
  close(): void {
    this.#stop.abort();
  }

  async #follow(): Promise<void> {
    let wasLost = false;
    try {
      await follow(`/api/executions/${encodeURIComponent(this.id)}/events?output=false`, {
        signal: this.#stop.signal,
        onEvent: ({ event, data }) => this.#receive(event ?? '', data),
        onConnection: (retryAt) => {
          this.retryAt = retryAt;
          // The server replays runs of the time before its restart with other numbers: then the record is read.
          if (retryAt === null && wasLost) void this.#readRecord();
          if (retryAt !== null) wasLost = true;
        },
        isLast: ({ event }) => event === 'result',
      });
    } catch (error) {
      if (isAbort(error) || this.#stop.signal.aborted) return;
      this.error = asApiError(error);
    }
    this.retryAt = null;
  }

  #receive(kind: string, data: string): void {
    if (kind === 'stdout' || kind === 'stderr') this.buffer.add(kind, JSON.parse(data) as string);
    else if (kind === 'state') this.#enter(JSON.parse(data) as RunState);
    else if (kind === 'result') this.result = JSON.parse(data) as RunResult;
  }

  #enter(state: RunState): void {
    this.state = state;
    this.seen = { ...this.seen, [state]: Date.now() };
  }

  /** For a run that ended while the server was away. What was printed until then stays. */
  async #readRecord(): Promise<void> {
    try {
      const detail = await take(
        api.GET('/api/executions/{id}', { params: { path: { id: this.id } }, signal: this.#stop.signal }),
      );
      if (detail.state !== 'completed' && detail.state !== 'error') return;
      if (this.result !== undefined) return;
      this.#stop.abort();
      this.retryAt = null;
      const { result } = detail;
      for (const stream of ['stdout', 'stderr'] as Stream[]) {
        const text = result?.[stream] ?? '';
        const { added } = this.buffer.ring;
        if (text.length > added[stream]) this.buffer.add(stream, text.slice(added[stream]));
      }
      if (result) this.result = result;
      this.#enter(detail.state);
    } catch {
      // The next try of the stream shows what is wrong.
    }
  }
}
