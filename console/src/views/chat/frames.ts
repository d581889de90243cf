/** Gathers items and hands them on once a frame, so that a fast stream does not draw more often than the screen. */
export interface Gathered<T> {
  add: (item: T) => void;
  /** Hand on everything that is there now. */
  flush: () => void;
  /** Wait until everything was handed on. */
  drained: () => Promise<void>;
}

/** Frames do not come while the page is hidden, so a timer stands by. */
const LATEST_MS = 500;

/** Of a long queue, this share is handed on each frame, so that it does not take long. */
const SHARE = 0.1;

/** @param most Items of one frame: those that come in a burst are drawn in several. */
export function byFrame<T>(hand: (items: T[]) => void, most: number): Gathered<T> {
  let items: T[] = [];
  let frame: number | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let waiting: (() => void)[] = [];

  function take(count: number): void {
    if (frame !== undefined) cancelAnimationFrame(frame);
    if (timer !== undefined) clearTimeout(timer);
    frame = timer = undefined;
    const ready = items.slice(0, count);
    items = items.slice(count);
    if (items.length > 0) schedule();
    try {
      if (ready.length > 0) hand(ready);
    } finally {
      if (items.length === 0) {
        waiting.forEach((resolve) => resolve());
        waiting = [];
      }
    }
  }

  const flush = (): void => take(Infinity);

  function schedule(): void {
    frame ??= requestAnimationFrame(() => take(Math.max(most, Math.ceil(items.length * SHARE))));
    timer ??= setTimeout(flush, LATEST_MS);
  }

  return {
    add(item) {
      items.push(item);
      schedule();
    },
    flush,
    drained: () => (items.length === 0 ? Promise.resolve() : new Promise((resolve) => waiting.push(resolve))),
  };
}
