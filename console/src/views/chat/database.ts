/** Conversations in this browser's own database. Nothing of it is sent anywhere. */
import type { ChatOptions } from './request';
import type { Turn } from './turns';

export interface Summary {
  id: string;
  title: string;
  createdAt: number;
  updatedAt: number;
}

export interface Content {
  id: string;
  turns: Turn[];
  options: ChatOptions;
  workspace: string;
}

export interface Stored {
  summary: Summary;
  content: Content;
}

/** The oldest conversations beyond this number are removed. */
export const MAX_CONVERSATIONS = 200;
const NAME = 'apexbridge.chats';
const SUMMARIES = 'summaries';
const CONTENTS = 'contents';

let opening: Promise<IDBDatabase> | undefined;

function database(): Promise<IDBDatabase> {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(SUMMARIES, { keyPath: 'id' });
      request.result.createObjectStore(CONTENTS, { keyPath: 'id' });
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => {
      opening = undefined;
      reject(request.error ?? new Error('The database of the browser cannot be opened.'));
    };
  });
  return opening;
}

async function transact<T>(mode: IDBTransactionMode, work: (store: (name: string) => IDBObjectStore) => () => T) {
  const transaction = (await database()).transaction([SUMMARIES, CONTENTS], mode);
  const result = work((name) => transaction.objectStore(name));
  return new Promise<T>((resolve, reject) => {
    transaction.oncomplete = () => resolve(result());
    transaction.onabort = transaction.onerror = () =>
      reject(transaction.error ?? new Error('The browser refused to store this.'));
  });
}

/** All conversations, the last used first. */
export function readSummaries(): Promise<Summary[]> {
  return transact('readonly', (store) => {
    const request = store(SUMMARIES).getAll() as IDBRequest<Summary[]>;
    return () => request.result.sort((a, b) => b.updatedAt - a.updatedAt);
  });
}

export function readConversation(id: string): Promise<Stored | undefined> {
  return transact('readonly', (store) => {
    const summary = store(SUMMARIES).get(id) as IDBRequest<Summary | undefined>;
    const content = store(CONTENTS).get(id) as IDBRequest<Content | undefined>;
    return () => (summary.result && content.result ? { summary: summary.result, content: content.result } : undefined);
  });
}

/** Store a conversation. Returns the ids of old ones that were removed for it. */
export function writeConversation({ summary, content }: Stored): Promise<string[]> {
  return transact('readwrite', (store) => {
    const removed: string[] = [];
    store(SUMMARIES).put(summary);
    store(CONTENTS).put(content);
    const all = store(SUMMARIES).getAll() as IDBRequest<Summary[]>;
    all.onsuccess = () => {
      const oldest = all.result.sort((a, b) => b.updatedAt - a.updatedAt).slice(MAX_CONVERSATIONS);
      for (const { id } of oldest) {
        store(SUMMARIES).delete(id);
        store(CONTENTS).delete(id);
        removed.push(id);
      }
    };
    return () => removed;
  });
}

export function removeConversation(id: string): Promise<void> {
  return transact('readwrite', (store) => {
    store(SUMMARIES).delete(id);
    store(CONTENTS).delete(id);
    return () => undefined;
  });
}
