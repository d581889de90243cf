/** Short messages about what was done, or what failed. */
import { untrack } from 'svelte';

import { asApiError, isAbort } from '../api/errors';

export interface Toast {
  id: number;
  tone: 'good' | 'bad';
  text: string;
  /** What the message offers, such as "Undo". */
  act?: { label: string; run: () => unknown };
}

const GOOD_MS = 6000;
const WITH_ACT_MS = 15_000;

class Toasts {
  shown = $state<Toast[]>([]);
  /** Open dialogs, the last one on top. Everything outside of it is inert, so messages are shown in it. */
  dialogs = $state.raw<HTMLElement[]>([]);
  #last = 0;

  add(text: string, options: Partial<Pick<Toast, 'tone' | 'act'>> = {}): void {
    const toast: Toast = { id: ++this.#last, tone: 'good', text, ...options };
    this.shown = [...this.shown.slice(-3), toast];
    // Errors stay until they are closed.
    if (toast.tone === 'good') setTimeout(() => this.close(toast.id), toast.act ? WITH_ACT_MS : GOOD_MS);
  }

  /** Show why something failed. */
  fail(error: unknown): void {
    if (isAbort(error)) return;
    this.add(asApiError(error).message, { tone: 'bad' });
  }

  /** Show messages in a dialog. Returns a function that ends it. */
  showIn(dialog: HTMLElement): () => void {
    this.dialogs = [...untrack(() => this.dialogs), dialog];
    return () => (this.dialogs = this.dialogs.filter((one) => one !== dialog));
  }

  close(id: number): void {
    this.shown = this.shown.filter((toast) => toast.id !== id);
  }
}

export const toasts = new Toasts();
