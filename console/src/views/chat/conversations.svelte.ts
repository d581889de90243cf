/** The conversations of this browser. */
import { toasts } from '../../ui/toasts.svelte';
import { Conversation, newWorkspace } from './conversation.svelte';
import {
  readConversation,
  readSummaries,
  removeConversation,
  writeConversation,
  type Stored,
  type Summary,
} from './database';
import { DEFAULT_OPTIONS, type ChatOptions } from './request';
import { newId } from './turns';

const OPTIONS = 'apexbridge.chat.options';

/** The options of the last conversation are those of the next one, except for what belongs to one task. */
function lastOptions(): ChatOptions {
  try {
    const { model, tools, approvals } = JSON.parse(localStorage.getItem(OPTIONS) ?? '{}') as Partial<ChatOptions>;
    return {
      ...DEFAULT_OPTIONS,
      ...(typeof model === 'string' && { model }),
      ...(typeof tools === 'boolean' && { tools }),
      ...((approvals === 'tool' || approvals === 'wait' || approvals === 'deny') && { approvals }),
    };
  } catch {
    return { ...DEFAULT_OPTIONS };
  }
}

class Conversations {
  list = $state.raw<Summary[] | undefined>();
  /** Whether the browser stores them; if not, they last as long as the page. */
  isStored = $state(true);
  #open = new Map<string, Conversation>();
  #blank: Conversation | undefined;
  #channel = 'BroadcastChannel' in window ? new BroadcastChannel('apexbridge.chats') : undefined;

  constructor() {
    this.#channel?.addEventListener('message', ({ data }: MessageEvent<string>) => void this.#changedElsewhere(data));
  }

  /** Another tab has changed a conversation. */
  async #changedElsewhere(id: string): Promise<void> {
    await this.load();
    const known = this.#open.get(id);
    if (known === undefined) return;
    const stored = await readConversation(id).catch(() => undefined);
    if (stored) known.adopt(stored);
  }

  async load(): Promise<void> {
    try {
      this.list = await readSummaries();
    } catch {
      this.isStored = false;
      this.list ??= [];
    }
  }

  /** The conversation that has not begun yet. */
  blank(): Conversation {
    this.#blank ??= this.#create(
      {
        summary: { id: newId(), title: '', createdAt: Date.now(), updatedAt: Date.now() },
        content: { id: '', turns: [], options: lastOptions(), workspace: newWorkspace() },
      },
      true,
    );
    return this.#blank;
  }

  /** A conversation by its id; undefined if this browser has none. */
  async find(id: string): Promise<Conversation | undefined> {
    const known = this.#open.get(id);
    if (known) return known;
    const stored = await readConversation(id).catch(() => undefined);
    return stored && (this.#open.get(id) ?? this.#create(stored));
  }

  rememberOptions(options: ChatOptions): void {
    const { model, tools, approvals } = options;
    try {
      localStorage.setItem(OPTIONS, JSON.stringify({ model, tools, approvals }));
    } catch {
      // no space: they are those of this conversation only
    }
  }

  async remove(id: string): Promise<Stored | undefined> {
    const conversation = this.#open.get(id);
    conversation?.stop();
    const stored = conversation && !conversation.isEmpty ? conversation.stored() : await readConversation(id);
    this.#open.delete(id);
    this.list = this.list?.filter((summary) => summary.id !== id);
    await removeConversation(id).catch((error: unknown) => toasts.fail(error));
    this.#channel?.postMessage(id);
    return stored;
  }

  restore(stored: Stored): void {
    this.#save(stored);
  }

  async rename(id: string, title: string): Promise<void> {
    (await this.find(id))?.rename(title);
  }

  #create(stored: Stored, isNew = false): Conversation {
    const conversation = new Conversation(stored, { isNew, onsave: (changed) => this.#saved(conversation, changed) });
    this.#open.set(conversation.id, conversation);
    return conversation;
  }

  #saved(conversation: Conversation, stored: Stored): void {
    if (this.#blank === conversation) this.#blank = undefined;
    if (this.#open.has(conversation.id)) this.#save(stored);
  }

  #save(stored: Stored): void {
    const { summary } = stored;
    this.list = [summary, ...(this.list ?? []).filter((known) => known.id !== summary.id)].sort(
      (a, b) => b.updatedAt - a.updatedAt,
    );
    writeConversation(stored).then(
      (removed) => {
        this.isStored = true;
        if (removed.length > 0) this.list = this.list?.filter((known) => !removed.includes(known.id));
        this.#channel?.postMessage(summary.id);
      },
      () => (this.isStored = false),
    );
  }
}

export const conversations = new Conversations();
