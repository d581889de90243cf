/** What was typed for a run of a skill. It survives errors and a reload of the tab. */
import type { Values } from '../../ui/form/values';

export interface SentFile {
  id: string;
  name: string;
  size: number;
}

interface Input {
  mode: 'fields' | 'json';
  value: Values;
  text: string;
}

interface Stored extends Input {
  script: string;
  /** Of the scripts that are not chosen now. */
  others: Record<string, Input>;
  args: string;
  timeout: string;
  workspace: string;
  files: SentFile[];
}

const EMPTY_INPUT: Input = { mode: 'fields', value: {}, text: '' };
const EMPTY: Stored = {
  ...EMPTY_INPUT,
  script: '',
  others: {},
  args: '',
  timeout: '',
  workspace: '',
  files: [],
};
const LONGEST = 2_000_000;

export class Draft {
  script = $state('');
  mode = $state<'fields' | 'json'>('fields');
  value = $state<Values>({});
  text = $state('');
  args = $state('');
  timeout = $state('');
  workspace = $state('');
  files = $state<SentFile[]>([]);
  others = $state.raw<Record<string, Input>>({});
  /** Raised when all of it was replaced. */
  version = $state(0);
  #storedAs: string;

  constructor(skill: string) {
    this.#storedAs = `apexbridge.run.${skill}`;
    Object.assign(this, structuredClone(EMPTY), this.#read());
  }

  /** Choose another script. Each has its own input. */
  choose(script: string): void {
    if (script === this.script) return;
    const { mode, value, text } = this;
    const others = new Map(
      Object.entries({ ...this.others, [this.script]: { mode, value: $state.snapshot(value), text } }),
    );
    Object.assign(this, structuredClone(EMPTY_INPUT), others.get(script), { script });
    others.delete(script);
    this.others = Object.fromEntries(others);
  }

  /** Replace the input. Returns a function that brings the one before back. */
  fill(value: Values): () => void {
    const { script, mode, text } = this;
    const before: Input = { mode, value: $state.snapshot(this.value), text };
    this.#replace({ ...EMPTY_INPUT, value });
    return () => {
      this.choose(script);
      this.#replace(before);
    };
  }

  #replace(input: Input): void {
    Object.assign(this, structuredClone(input));
    this.version += 1;
  }

  clear(): void {
    Object.assign(this, structuredClone(EMPTY), { script: this.script, others: this.others });
    this.version += 1;
  }

  /** Write it down. Reads every field, so that an effect that calls it runs for each change. */
  store(): void {
    const { script, others, mode, value, text, args, timeout, workspace, files } = this;
    const document = JSON.stringify({ script, others, mode, value, text, args, timeout, workspace, files });
    try {
      if (document.length <= LONGEST) sessionStorage.setItem(this.#storedAs, document);
    } catch {
      // no space: the draft lives as long as the page
    }
  }

  #read(): Partial<Stored> {
    try {
      const stored: unknown = JSON.parse(sessionStorage.getItem(this.#storedAs) ?? '{}');
      return typeof stored === 'object' && stored !== null ? (stored as Partial<Stored>) : {};
    } catch {
      return {};
    }
  }
}
