/** An output that grows: text is gathered, and drawn once a frame. */
import { LineRing, type Stream } from './lines';

export class OutputBuffer {
  readonly ring: LineRing;
  /** Raised when there is something new to draw. */
  version = $state(0);
  #frame: number | undefined;

  constructor(limit?: number) {
    this.ring = new LineRing(limit);
  }

  add(stream: Stream, text: string): void {
    this.ring.add(stream, text);
    this.#changed();
  }

  clear(): void {
    this.ring.clear();
    this.#changed();
  }

  /** In a hidden page no frames are drawn: then the next one that is shown draws everything. */
  #changed(): void {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined;
      this.version += 1;
    });
  }
}
