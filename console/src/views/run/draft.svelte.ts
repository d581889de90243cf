/** What was typed for a run of a skill. It survives errors and a reload of the tab. */
import type { Values } from '../../ui/form/values';

export interface SentFile {
  id: string;
  name: string;
  size: number;
}

interface Stored {
  script: string;
  mode: 'fields' | 'json';
  value: Values;
  text: string;
  args: string;
  timeout: string;
  workspace: string;
  files: SentFile[];
}

const EMPTY: Stored = {
  script: '',
  mode: 'fields',
  value: {},
  text: '',
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
  /** Raised when all of it was replaced. */
  version = $state(0);
  #storedAs: string;

  constructor(skill: string) {
    this.#storedAs = `apexbridge.run.${skill}`;
    Object.assign(this, structuredClone(EMPTY), this.#read());
  }

  clear(): void {
    Object.assign(this, structuredClone(EMPTY), { script: this.script });
    this.version += 1;
  }

  /** Write it down. Reads every field, so that an effect that calls it runs for each change. */
  store(): void {
    const { script, mode, value, text, args, timeout, workspace, files } = this;
    const document = JSON.stringify({ script, mode, value, text, args, timeout, workspace, files });
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
