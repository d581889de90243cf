/** An install of packages with the lines of its installer. It goes on while other parts of the page are shown. */
import { check, send } from '../../../api/client';
import { asApiError, connectionClosed, errorFrom, isAbort, type ApiError } from '../../../api/errors';
import { readEvents } from '../../../api/sse';

/** Older lines are dropped. */
const MAX_LINES = 1000;

const installs = new Map<string, PackageInstall>();

/** The install of a skill's packages: the one that runs, or the last one. */
export function installOf(skill: string): PackageInstall {
  let install = installs.get(skill);
  if (install === undefined) installs.set(skill, (install = new PackageInstall()));
  return install;
}

export class PackageInstall {
  lines = $state.raw<string[]>([]);
  isRunning = $state(false);
  error = $state.raw<ApiError>();
  #pending: string[] = [];
  #frame = 0;

  /** Returns whether it succeeded; otherwise `error` says why. */
  async run(method: 'POST' | 'PUT', path: string, body?: unknown): Promise<boolean> {
    this.lines = [];
    this.error = undefined;
    this.isRunning = true;
    try {
      const headers: Record<string, string> = { Accept: 'text/event-stream, application/json' };
      if (body !== undefined) headers['Content-Type'] = 'application/json';
      const response = await check(
        await send(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }),
      );
      if (!response.headers.get('Content-Type')?.startsWith('text/event-stream')) return true;
      for await (const { event, data } of readEvents(response)) {
        if (event === 'progress') this.#add(String((JSON.parse(data) as { line: unknown }).line));
        else if (event === 'result') return true;
        else if (event === 'error') throw errorFrom(500, JSON.parse(data));
      }
      throw connectionClosed();
    } catch (error) {
      if (!isAbort(error)) this.error = asApiError(error);
      return false;
    } finally {
      this.#draw();
      this.isRunning = false;
    }
  }

  /** Lines are gathered and drawn once a frame. */
  #add(line: string): void {
    this.#pending.push(line);
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#pending.length === 0) return;
    this.lines = [...this.lines, ...this.#pending].slice(-MAX_LINES);
    this.#pending = [];
  }
}
