/**
 * Packages that are being installed. They outlive the dialog: closing it, or going to another view, loses nothing.
 */
import { asApiError, isAbort, type ApiError } from '../../../api/errors';
import { live } from '../../../app/live.svelte';
import { session } from '../../../app/session.svelte';
import { checkFile, checkSource, installChecked, installFile, installSource } from './requests';
import type { CheckReport, InstallReceipt, Progress } from './types';

export type Step =
  | 'waiting' // for its turn
  | 'sending' // to the server
  | 'checking' // fetched and checked by the server
  | 'checked' // by the server: the user decides
  | 'installing'
  | 'installed'
  | 'failed';

/** Why a file is refused before it is sent. */
export type Refusal = 'folder' | 'empty' | 'large';

export interface DroppedFile {
  file: File | null;
  isFolder: boolean;
}

const AT_ONCE = 2;

export class Install {
  step = $state<Step>('waiting');
  /** Between 0 and 1; undefined while it is not known. */
  share = $state<number>();
  progress = $state.raw<Progress>();
  report = $state.raw<CheckReport>();
  receipt = $state.raw<InstallReceipt>();
  error = $state.raw<ApiError>();
  refusal = $state.raw<Refusal>();
  #abort = new AbortController();

  constructor(
    readonly id: number,
    /** The name of the file, or the source. */
    readonly label: string,
    readonly file: File | undefined,
  ) {}

  get isActive(): boolean {
    return this.step === 'sending' || this.step === 'checking' || this.step === 'installing';
  }

  get isReplacement(): boolean {
    return this.report?.packages?.some((each) => each.replaces !== null) ?? false;
  }

  async check(): Promise<void> {
    this.#abort = new AbortController();
    this.error = this.refusal = this.progress = this.share = undefined;
    try {
      this.report = await (this.file ? this.#send(this.file) : this.#fetch());
      this.step = 'checked';
    } catch (error) {
      if (!isAbort(error)) this.#fail(error);
    }
  }

  async install(): Promise<void> {
    if (!this.report?.valid) return;
    this.step = 'installing';
    this.error = this.progress = this.share = undefined;
    try {
      this.receipt = await this.#install(this.report.upload ?? null);
      this.step = 'installed';
    } catch (error) {
      // Somebody installed one of these names in the meantime: the check says what would be replaced now.
      if (asApiError(error).code === 'SKILL_ALREADY_EXISTS') await this.check();
      else this.#fail(error);
    }
  }

  stop(): void {
    this.#abort.abort();
  }

  refuse(refusal: Refusal): void {
    this.refusal = refusal;
    this.step = 'failed';
  }

  #send(file: File): Promise<CheckReport> {
    this.step = 'sending';
    const sent = ({ sent, total }: { sent: number; total: number }): void => {
      this.share = total > 0 ? sent / total : undefined;
      if (sent >= total) this.step = 'checking';
    };
    return checkFile(file, sent, this.#abort.signal);
  }

  #install(checked: string | null): Promise<InstallReceipt> {
    const overwrite = this.isReplacement;
    const follow = (progress: Progress): void => this.#follow(progress);
    if (checked !== null) return installChecked(checked, overwrite, follow);
    if (this.file === undefined) return installSource(this.label, overwrite, follow);
    return installFile(this.file, overwrite, ({ sent, total }) => (this.share = total > 0 ? sent / total : undefined));
  }

  #fetch(): Promise<CheckReport> {
    this.step = 'checking';
    return checkSource(this.label, (progress) => this.#follow(progress), this.#abort.signal);
  }

  #follow(progress: Progress): void {
    this.progress = progress;
    const { bytes, total } = progress;
    this.share = bytes !== null && total !== null && total > 0 ? Math.min(1, bytes / total) : undefined;
  }

  #fail(error: unknown): void {
    this.error = asApiError(error);
    this.step = 'failed';
  }
}

class Installs {
  items = $state.raw<Install[]>([]);
  #last = 0;

  constructor() {
    // After the server was away: checks change nothing, so those that were cut off are made again.
    live.on([], () => {
      for (const item of this.items) if (item.step === 'failed' && item.error?.isUnreachable) item.step = 'waiting';
      this.#next();
    });
  }

  addFiles(files: Iterable<File>): void {
    this.addDropped([...files].map((file) => ({ file, isFolder: false })));
  }

  addDropped(dropped: readonly DroppedFile[]): void {
    const limit = session.info?.limits?.archiveBytes;
    for (const { file, isFolder } of dropped) {
      if (file === null) continue;
      const item = this.#add(file.name, file);
      if (isFolder) item.refuse('folder');
      else if (file.size === 0) item.refuse('empty');
      else if (limit !== undefined && file.size > limit) item.refuse('large');
    }
    this.#next();
  }

  addSource(source: string): void {
    this.#add(source, undefined);
    this.#next();
  }

  /** Check again what failed. A file is sent again, because the server may have lost it. */
  retry(item: Install): void {
    item.step = 'waiting';
    this.#next();
  }

  discard(item: Install): void {
    item.stop();
    this.items = this.items.filter((each) => each !== item);
    this.#next();
  }

  clearInstalled(): void {
    this.items = this.items.filter((item) => item.step !== 'installed');
  }

  #add(label: string, file: File | undefined): Install {
    const item = new Install(++this.#last, label, file);
    this.items = [...this.items, item];
    return item;
  }

  /** Begin with those that wait, a few at a time. */
  #next(): void {
    const active = this.items.filter((item) => item.step === 'sending' || item.step === 'checking').length;
    const waiting = this.items.filter((item) => item.step === 'waiting');
    for (const item of waiting.slice(0, Math.max(0, AT_ONCE - active))) {
      void item.check().finally(() => this.#next());
    }
  }
}

export const installs = new Installs();
