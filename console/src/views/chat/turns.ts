/** What a conversation consists of, and the messages that it is for the model. */
import type { Schemas } from '../../api/client';

export type ToolCall = Schemas['ChatToolCall'];
export type SearchHit = Schemas['ChatSearchHit'];

/** A message as it is sent to the server. */
export type Message =
  | { role: 'system' | 'user'; content: string }
  | { role: 'assistant'; content: string | null; tool_calls?: CallMessage[] }
  | { role: 'tool'; tool_call_id: string; content: string };

export interface CallMessage {
  id: string;
  type: 'function';
  function: { name: string; arguments: string };
}

export interface WorkspaceFile {
  path: string;
  size: number;
}

export interface TextPart {
  type: 'text' | 'reasoning';
  text: string;
}

export interface StepPart {
  type: 'step';
  call: ToolCall;
}

export type Part = TextPart | StepPart;

export type Decision = 'approved' | 'denied' | 'expired';

/** A call that the user has to decide about before the answer goes on. */
export interface Ask {
  callId: string;
  approvalId: string;
  skill: string;
  summary: string;
  /** The exact input. */
  call: string;
  /** In milliseconds since 1970. */
  expiresAt: number | null;
  /** `expired`: nobody decided in time. */
  decision: Decision | null;
}

export interface Failure {
  status: number;
  code: string;
  message: string;
}

export interface Question {
  role: 'user';
  id: string;
  at: number;
  text: string;
  /** Files that were attached. They are in the workspace of the conversation. */
  files: WorkspaceFile[];
}

/** `interrupted`: the page was closed or loaded again. */
export type AnswerState = 'streaming' | 'asking' | 'done' | 'stopped' | 'interrupted' | 'failed';

export interface Answer {
  role: 'assistant';
  id: string;
  at: number;
  state: AnswerState;
  model: string;
  parts: Part[];
  asks: Ask[];
  /** What this answer adds to the conversation for the model. */
  messages: Message[];
  failure: Failure | null;
  promptTokens: number;
  completionTokens: number;
  durationMs: number;
  modelTurns: number;
  stopCause: string | null;
  files: WorkspaceFile[];
}

export type Turn = Question | Answer;

export function newId(): string {
  return crypto.randomUUID?.() ?? `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 12)}`;
}

export function newQuestion(text: string, files: WorkspaceFile[] = []): Question {
  return { role: 'user', id: newId(), at: Date.now(), text, files };
}

export function newAnswer(model: string): Answer {
  return {
    role: 'assistant',
    id: newId(),
    at: Date.now(),
    state: 'streaming',
    model,
    parts: [],
    asks: [],
    messages: [],
    failure: null,
    promptTokens: 0,
    completionTokens: 0,
    durationMs: 0,
    modelTurns: 0,
    stopCause: null,
    files: [],
  };
}

/** The text of an answer, without reasoning and tool calls. */
export function answerText(answer: Answer): string {
  return answer.parts
    .filter((part): part is TextPart => part.type === 'text')
    .map((part) => part.text)
    .join('\n\n')
    .trim();
}

/** The message of a question. It names its files in the form that the server itself uses for uploads. */
function questionMessage(question: Question): Message {
  const notes = question.files.map((file) => `[File ${file.path}, ${file.size} bytes, in the workspace]`);
  return { role: 'user', content: [question.text, ...notes].filter((text) => text !== '').join('\n') };
}

/** The messages of a conversation for the next request. */
export function messagesOf(turns: readonly Turn[], system = ''): Message[] {
  const messages: Message[] = system.trim() === '' ? [] : [{ role: 'system', content: system }];
  for (const turn of turns) messages.push(...(turn.role === 'user' ? [questionMessage(turn)] : turn.messages));
  return messages;
}

/** The result of a call that asks the user. Everything but an approval denies. */
export function decisionMessage(ask: Ask): Message {
  return { role: 'tool', tool_call_id: ask.callId, content: JSON.stringify({ approve: ask.decision === 'approved' }) };
}

/** Calls that were not decided count as denied when the conversation goes on without them. */
export function denyOpenAsks(answer: Answer): void {
  if (answer.state !== 'asking') return;
  for (const ask of answer.asks) ask.decision ??= 'denied';
  answer.messages.push(...openAsks(answer).map(decisionMessage));
  answer.state = 'stopped';
}

/** The call that an approval was for is not made. */
export function endStep(answer: Answer, approvalId: string): void {
  for (const part of answer.parts) {
    if (part.type === 'step' && part.call.approvalId === approvalId) part.call.state = 'ended';
  }
}

/** The asks that belong to the last message of the answer. */
export function openAsks(answer: Answer): Ask[] {
  const last = answer.messages.at(-1);
  const ids = new Set(last?.role === 'assistant' ? last.tool_calls?.map((call) => call.id) : []);
  return answer.asks.filter((ask) => ids.has(ask.callId));
}

const TITLE_CHARACTERS = 60;

/** The name of a conversation, from its first question. */
export function titleOf(text: string): string {
  const line = text.trim().split('\n', 1)[0]?.replace(/\s+/g, ' ') ?? '';
  const characters = [...line];
  return characters.length <= TITLE_CHARACTERS ? line : `${characters.slice(0, TITLE_CHARACTERS - 1).join('')}…`;
}

/** Stored conversations are bounded: beyond this, the oldest steps lose their arguments and results. */
export const STORED_CHARACTERS = 4_000_000;

function size(turn: Turn): number {
  if (turn.role === 'user') return turn.text.length;
  let total = 0;
  for (const part of turn.parts) {
    total += part.type === 'step' ? part.call.arguments.length + (part.call.result?.length ?? 0) : part.text.length;
  }
  return total;
}

/** The turns as they are stored: steps of the oldest answers without their texts, if all together are too large. */
export function bounded(turns: readonly Turn[], limit = STORED_CHARACTERS): Turn[] {
  let total = turns.reduce((sum, turn) => sum + size(turn), 0);
  return turns.map((turn) => {
    if (total <= limit || turn.role === 'user') return turn;
    const before = size(turn);
    const smaller: Answer = {
      ...turn,
      parts: turn.parts.map((part) =>
        part.type === 'step'
          ? {
              ...part,
              call: { ...part.call, arguments: '', argumentsTruncated: true, result: null, resultTruncated: true },
            }
          : part,
      ),
    };
    total -= before - size(smaller);
    return smaller;
  });
}
