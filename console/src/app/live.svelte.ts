/** The server's events: one connection for the whole page. Views listen, so nothing polls. */
import { follow } from '../api/sse';
import { ApiError, asApiError } from '../api/errors';

export interface Counts {
  /** Approvals that wait; null if this key may not see them. */
  approvals: number | null;
  running: number;
  waiting: number;
}

type Listener = (data: Record<string, unknown>) => void;

/** Events that mean "load again", also after a gap that the server cannot fill. */
const RESET = 'reset';

class Live {
  counts = $state.raw<Counts>({ approvals: null, running: 0, waiting: 0 });
  /** When the connection is tried again, in milliseconds since 1970; null while it is open. */
  retryAt = $state<number | null>(null);
  #listeners = new Map<string, Set<Listener>>();
  #stop: AbortController | undefined;
  #instance: unknown;

  get isConnected(): boolean {
    return this.retryAt === null;
  }

  /** Call `listener` for events with these names, and after each gap. Returns a function that ends it. */
  on(names: readonly string[], listener: Listener): () => void {
    const all = [...names, RESET];
    for (const name of all) {
      if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
      this.#listeners.get(name)!.add(listener);
    }
    return () => all.forEach((name) => this.#listeners.get(name)?.delete(listener));
  }

  /** Let every view load its data again. */
  reset(): void {
    this.#publish(RESET, {});
  }

  /** Connect, or connect again with another key. */
  start(): void {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    let wasLost = !this.isConnected;
    follow('/api/events', {
      signal: stop.signal,
      onEvent: ({ event = '', data }) => this.#receive(event, parsed(data)),
      onConnection: (retryAt) => {
        if (retryAt !== null) wasLost = true;
        else if (wasLost) {
          wasLost = false;
          this.reset();
        }
        this.retryAt = retryAt;
      },
    }).catch((error: unknown) => {
      // A refused key asks for another one, and then `start` is called again.
      if (!(asApiError(error) instanceof ApiError)) throw error;
      this.retryAt = null;
    });
  }

  #receive(name: string, data: Record<string, unknown>): void {
    if (name === 'hello' || name === 'counts') {
      this.counts = { ...this.counts, ...(data as Partial<Counts>) };
    }
    if (name === 'hello') {
      if (this.#instance !== undefined && this.#instance !== data.instance) this.reset();
      this.#instance = data.instance;
    }
    this.#publish(name, data);
  }

  #publish(name: string, data: Record<string, unknown>): void {
    this.#listeners.get(name)?.forEach((listener) => listener(data));
  }
}

function parsed(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

export const live = new Live();
