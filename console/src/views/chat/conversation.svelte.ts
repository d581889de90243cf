/** One conversation: its turns, its draft, and the request that goes on. It lives on while another view is open. */
import { send as sendRequest, upload, type Schemas } from '../../api/client';
import { ApiError, asApiError, isAbort } from '../../api/errors';
import { readEvents } from '../../api/sse';
import { decided, Leg, parseChunk, type Chunk } from './chunks';
import type { Stored } from './database';
import { byFrame } from './frames';
import { requestBody, type ChatOptions, type ChatRequestBody } from './request';
import {
  bounded,
  denyOpenAsks,
  endStep,
  newAnswer,
  newId,
  newQuestion,
  openAsks,
  titleOf,
  type Answer,
  type Decision,
  type Question,
  type Turn,
  type WorkspaceFile,
} from './turns';

/** A file that is attached to the next message. */
export interface Attachment {
  id: string;
  name: string;
  size: number;
  /** Between 0 and 1; 1 when it is in the workspace. */
  progress: number;
  /** Its path in the workspace, when it is there. */
  path: string | null;
  error: string | null;
}

const DRAFT = 'apexbridge.chat.draft.';
/** What the draft of a conversation that does not exist yet is stored under. */
const NEW = 'new';
const SAVE_MS = 1000;
const CHUNKS_PER_FRAME = 100;
const CUT = 'The connection ended before the answer did.';

interface Draft {
  text: string;
  files: WorkspaceFile[];
  workspace: string;
}

function storedDraft(name: string): Draft {
  try {
    const draft = JSON.parse(sessionStorage.getItem(DRAFT + name) ?? '{}') as Partial<Draft>;
    return { text: draft.text ?? '', files: draft.files ?? [], workspace: draft.workspace ?? '' };
  } catch {
    return { text: '', files: [], workspace: '' };
  }
}

/** A file that is in the workspace already. */
function attached({ path, size }: WorkspaceFile): Attachment {
  return { id: newId(), name: path, size, progress: 1, path, error: null };
}

export function newWorkspace(): string {
  return `chat-${newId()}`;
}

export class Conversation {
  readonly id: string;
  readonly createdAt: number;
  workspace = $state('');
  title = $state('');
  updatedAt = $state(0);
  turns = $state<Turn[]>([]);
  options = $state<ChatOptions>()!;
  isStreaming = $state(false);
  #draft = $state('');
  #attachments = $state<Attachment[]>([]);
  #draftName: string;
  #controller: AbortController | undefined;
  #saving: ReturnType<typeof setTimeout> | undefined;
  readonly #onsave: (stored: Stored) => void;

  constructor(stored: Stored, { isNew = false, onsave }: { isNew?: boolean; onsave: (stored: Stored) => void }) {
    const { summary, content } = stored;
    this.id = summary.id;
    this.createdAt = summary.createdAt;
    this.workspace = content.workspace;
    this.title = summary.title;
    this.updatedAt = summary.updatedAt;
    this.options = content.options;
    this.turns = content.turns.map((turn) =>
      turn.role === 'assistant' && turn.state === 'streaming' ? interrupted(turn) : turn,
    );
    this.#draftName = isNew ? NEW : this.id;
    const draft = storedDraft(this.#draftName);
    this.#draft = draft.text;
    this.#attachments = draft.files.map(attached);
    if (isNew && draft.workspace !== '') this.workspace = draft.workspace; // its files are there
    this.#onsave = onsave;
  }

  get isEmpty(): boolean {
    return this.turns.length === 0;
  }

  /** What is being written. It survives a reload of the page. */
  get draft(): string {
    return this.#draft;
  }

  set draft(text: string) {
    this.#draft = text;
    this.#storeDraft();
  }

  get attachments(): Attachment[] {
    return this.#attachments;
  }

  set attachments(attachments: Attachment[]) {
    this.#attachments = attachments;
    this.#storeDraft();
  }

  /** The files of the draft that are in the workspace. */
  get #draftFiles(): WorkspaceFile[] {
    return this.#attachments.flatMap(({ path, size }) => (path === null ? [] : [{ path, size }]));
  }

  #storeDraft(): void {
    const draft: Draft = { text: this.#draft, files: this.#draftFiles, workspace: this.workspace };
    try {
      if (draft.text === '' && draft.files.length === 0) sessionStorage.removeItem(DRAFT + this.#draftName);
      else sessionStorage.setItem(DRAFT + this.#draftName, JSON.stringify(draft));
    } catch {
      // too large for the browser's storage: it stays in the page
    }
  }

  get lastAnswer(): Answer | undefined {
    const last = this.turns.at(-1);
    return last?.role === 'assistant' ? last : undefined;
  }

  /** The request that would be sent for an answer, or for the next one. */
  request(answer?: Answer): ChatRequestBody {
    const end = answer ? this.turns.findIndex((turn) => turn.id === answer.id) : -1;
    return requestBody(end < 0 ? this.turns : this.turns.slice(0, end), this.options, this.workspace);
  }

  stored(): Stored {
    return {
      summary: { id: this.id, title: this.title, createdAt: this.createdAt, updatedAt: this.updatedAt },
      content: {
        id: this.id,
        turns: bounded($state.snapshot(this.turns) as Turn[]),
        options: $state.snapshot(this.options),
        workspace: this.workspace,
      },
    };
  }

  /** Show what another tab has stored. */
  adopt({ summary, content }: Stored): void {
    if (this.isStreaming) return;
    this.title = summary.title;
    this.updatedAt = summary.updatedAt;
    this.turns = content.turns;
  }

  save(): void {
    clearTimeout(this.#saving);
    this.#saving = undefined;
    if (!this.isEmpty) this.#onsave(this.stored());
  }

  rename(title: string): void {
    this.title = title.trim() || this.title;
    this.save();
  }

  /** Send the draft with its attachments. */
  async submit(): Promise<void> {
    const text = this.draft.trim();
    const files = this.#draftFiles;
    if (this.isStreaming || (text === '' && files.length === 0)) return;
    if (this.lastAnswer) denyOpenAsks(this.lastAnswer);
    this.draft = '';
    this.attachments = [];
    this.#draftName = this.id;
    await this.#ask(newQuestion(text, files), [...this.turns]);
  }

  /** Ask, after the turns that are here. Without an accepted key nothing was asked: then it is as `before`. */
  async #ask(question: Question, before: Turn[]): Promise<void> {
    if (this.isEmpty) this.title = titleOf(question.text || question.files[0]?.path || '');
    this.turns.push(question);
    await this.#answer();
    if (!this.#isRefused) return;
    this.restore(before);
    this.draft = [question.text, this.draft].filter((text) => text !== '').join('\n\n');
    this.attachments = [...question.files.map(attached), ...this.attachments];
  }

  get #isRefused(): boolean {
    return this.lastAnswer?.failure?.status === 401 && this.lastAnswer.parts.length === 0;
  }

  /** Answer the last question again. Returns the turns before, for "undo". */
  async retry(): Promise<void> {
    if (this.isStreaming) return;
    const before = [...this.turns];
    if (this.lastAnswer) this.turns.pop();
    if (this.turns.at(-1)?.role !== 'user') return;
    await this.#answer();
    if (this.#isRefused) this.restore(before);
  }

  /** Ask a question in other words. What followed it is removed. */
  async edit(id: string, text: string): Promise<void> {
    const index = this.turns.findIndex((turn) => turn.id === id);
    const before = this.turns[index];
    if (this.isStreaming || before?.role !== 'user') return;
    const all = [...this.turns];
    this.turns = this.turns.slice(0, index);
    await this.#ask(newQuestion(text.trim(), before.files), all);
  }

  /** Take back a retry or an edit. */
  restore(turns: Turn[]): void {
    this.stop();
    this.turns = turns;
    this.save();
  }

  snapshot(): Turn[] {
    return $state.snapshot(this.turns) as Turn[];
  }

  /** Decide about a call of the last answer. When all are decided, the answer goes on. */
  async decide(callId: string, decision: Decision): Promise<void> {
    const answer = this.lastAnswer;
    if (answer?.state !== 'asking' || this.isStreaming) return;
    const ask = answer.asks.find((one) => one.callId === callId);
    if (!ask || ask.decision !== null) return;
    ask.decision = decision;
    if (decision === 'expired') endStep(answer, ask.approvalId);
    const asks = openAsks(answer);
    // If all have expired, the user is away, or opened an old conversation: nothing goes on by itself.
    if (asks.some((one) => one.decision === null) || asks.every((one) => one.decision === 'expired')) this.save();
    else {
      decided(answer);
      await this.#stream(answer, requestBody(this.turns, this.options, this.workspace));
    }
  }

  /** Go on without the earlier files: they belong to another API key. */
  async renewWorkspace(): Promise<void> {
    this.workspace = newWorkspace();
    await this.retry();
  }

  /** End the request; what was written stays. */
  stop(): void {
    this.#controller?.abort();
  }

  async #answer(): Promise<void> {
    const body = requestBody(this.turns, this.options, this.workspace);
    this.turns.push(newAnswer(this.options.model));
    // the same answer, but with changes that are seen
    await this.#stream(this.turns.at(-1) as Answer, body);
  }

  async #stream(answer: Answer, body: ChatRequestBody): Promise<void> {
    const controller = (this.#controller = new AbortController());
    const started = performance.now();
    const leg = new Leg(answer);
    const chunks = byFrame<Chunk>((ready) => {
      for (const chunk of ready) leg.add(chunk);
      this.#saving ??= setTimeout(() => this.save(), SAVE_MS);
    }, CHUNKS_PER_FRAME);
    this.isStreaming = true;
    answer.failure = null;
    this.updatedAt = Date.now();
    this.save();
    let state: Answer['state'] = 'done';
    try {
      const response = await sendRequest('/v1/chat/completions', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', Accept: 'text/event-stream' },
        body: JSON.stringify(body),
        signal: controller.signal,
      });
      for await (const { data } of readEvents(response)) {
        if (data === '[DONE]') break;
        const chunk = parseChunk(data);
        if (chunk.error) {
          chunks.flush();
          leg.add(chunk);
        }
        chunks.add(chunk);
      }
      await Promise.race([chunks.drained(), aborted(controller.signal)]);
      chunks.flush();
      if (!leg.isFinished) throw new ApiError(0, 'UNREACHABLE', CUT);
    } catch (error) {
      chunks.flush();
      if (controller.signal.aborted || isAbort(error)) state = 'stopped';
      else {
        const { status, code, message } = asApiError(error);
        answer.failure = { status, code, message };
        state = 'failed';
      }
    } finally {
      answer.durationMs += Math.round(performance.now() - started);
      leg.end(state);
      this.isStreaming = false;
      this.updatedAt = Date.now();
      this.save();
    }
  }

  /** Put a file into the workspace, for the next message. */
  async attach(file: File): Promise<void> {
    this.#attachments.push({ id: newId(), name: file.name, size: file.size, progress: 0, path: null, error: null });
    const attachment = this.#attachments.at(-1)!;
    const form = new FormData();
    form.append('file', file, file.name);
    try {
      const stored = await upload<Schemas['Upload']>(
        `/api/uploads?workspace=${encodeURIComponent(this.workspace)}`,
        form,
        { onProgress: ({ sent, total }) => (attachment.progress = total > 0 ? (sent / total) * 0.99 : 0) },
      );
      attachment.path = stored.name;
      attachment.size = stored.size;
      attachment.progress = 1;
      this.#storeDraft();
    } catch (error) {
      attachment.error = asApiError(error).message;
    }
  }

  detach(id: string): void {
    this.attachments = this.attachments.filter((attachment) => attachment.id !== id);
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}

/** The page was closed while the answer was written. What was stored of it stays. */
function interrupted(answer: Answer): Answer {
  new Leg(answer).end('interrupted');
  const text = answer.parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('');
  if (answer.messages.length === 0 && text !== '') answer.messages.push({ role: 'assistant', content: text });
  return answer;
}
