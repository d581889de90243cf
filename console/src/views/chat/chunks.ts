/** Chunks of a streamed answer, added to the answer that is shown. */
import { ApiError, errorFrom } from '../../api/errors';
import { decisionMessage, openAsks, type Answer, type Ask, type CallMessage, type ToolCall } from './turns';

/** What is read of a chunk. Its sender is the model's server in part, so every field may be missing. */
export interface Chunk {
  error?: unknown;
  model?: string;
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number } | null;
  x_bridge?: {
    activity?: unknown;
    toolCall?: ToolCall | null;
    turns?: number;
    stopCause?: string;
    files?: { path: string; size: number }[] | null;
  } | null;
}

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  reasoning?: string | null;
  tool_calls?: CallDelta[] | null;
}

interface CallDelta {
  index?: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

const APPROVE = 'bridge_approve_skill';

/** Adds the chunks of one request to an answer. An answer that asks the user continues with another request. */
export class Leg {
  #text = '';
  #calls: CallMessage[] = [];
  #finish: string | null = null;
  readonly #answer: Answer;

  constructor(answer: Answer) {
    this.#answer = answer;
  }

  /** Whether the model came to an end: without it, the stream was cut. */
  get isFinished(): boolean {
    return this.#finish !== null;
  }

  add(chunk: Chunk): void {
    if (chunk.error !== undefined && chunk.error !== null) throw errorFrom(502, chunk);
    const answer = this.#answer;
    if (typeof chunk.model === 'string' && chunk.model !== '') answer.model = chunk.model;
    const bridge = chunk.x_bridge ?? {};
    if (bridge.toolCall) this.#step(bridge.toolCall);
    const choice = chunk.choices?.[0];
    // With tool calls the server repeats them as reasoning, for clients that cannot show them.
    if (choice?.delta && !bridge.toolCall && !bridge.activity) this.#delta(choice.delta);
    if (choice?.finish_reason) this.#finish = choice.finish_reason;
    if (chunk.usage) {
      answer.promptTokens += chunk.usage.prompt_tokens ?? 0;
      answer.completionTokens += chunk.usage.completion_tokens ?? 0;
    }
    if (typeof bridge.turns === 'number') answer.modelTurns += bridge.turns;
    if (typeof bridge.stopCause === 'string') answer.stopCause = bridge.stopCause;
    for (const file of bridge.files ?? []) {
      answer.files = [
        ...answer.files.filter((known) => known.path !== file.path),
        { path: file.path, size: file.size },
      ];
    }
  }

  /** The request is over, however it ended. What was written becomes a message of the conversation. */
  end(state: Answer['state']): void {
    const answer = this.#answer;
    for (const part of answer.parts) {
      // A call that asks the user waits for the next request; all others ended with the connection.
      if (part.type === 'step' && part.call.state !== 'ended' && part.call.state !== 'waiting')
        part.call.state = 'ended';
    }
    const asked = state === 'done' ? this.#calls.filter((call) => call.function.name === APPROVE) : [];
    if (this.#text !== '' || asked.length > 0) {
      const content = this.#text === '' ? null : this.#text;
      answer.messages.push({ role: 'assistant', content, ...(asked.length > 0 && { tool_calls: asked }) });
    }
    answer.asks.push(...asked.map(askOf));
    answer.state = asked.length > 0 ? 'asking' : state;
    if (state !== 'done') {
      for (const part of answer.parts)
        if (part.type === 'step' && part.call.state === 'waiting') part.call.state = 'ended';
    }
  }

  #delta(delta: Delta): void {
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (typeof thought === 'string' && thought !== '') this.#append('reasoning', thought);
    if (typeof delta.content === 'string' && delta.content !== '') {
      this.#text += delta.content;
      this.#append('text', delta.content);
    }
    for (const call of delta.tool_calls ?? []) this.#call(call);
  }

  #append(type: 'text' | 'reasoning', text: string): void {
    const last = this.#answer.parts.at(-1);
    if (last?.type === type) last.text += text;
    else if (text.trim() !== '') this.#answer.parts.push({ type, text });
  }

  #step(call: ToolCall): void {
    const known = this.#answer.parts.find((part) => part.type === 'step' && part.call.id === call.id);
    if (known?.type === 'step') known.call = call;
    else this.#answer.parts.push({ type: 'step', call });
  }

  #call(delta: CallDelta): void {
    const index = delta.index ?? this.#calls.length;
    const call = (this.#calls[index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } });
    if (delta.id) call.id = delta.id;
    if (delta.function?.name) call.function.name = delta.function.name;
    call.function.arguments += delta.function?.arguments ?? '';
  }
}

function askOf(call: CallMessage): Ask {
  let fields: Record<string, unknown> = {};
  try {
    fields = JSON.parse(call.function.arguments) as Record<string, unknown>;
  } catch {
    // shown as it is
  }
  const text = (name: string): string => (typeof fields[name] === 'string' ? (fields[name] as string) : '');
  return {
    callId: call.id,
    approvalId: text('approvalId'),
    skill: text('skill'),
    summary: text('summary'),
    call: text('call') || call.function.arguments,
    expiresAt: typeof fields.expiresAt === 'number' ? fields.expiresAt : null,
    decision: null,
  };
}

/** Put the user's decisions into the answer, so that the next request continues it. */
export function decided(answer: Answer): void {
  answer.messages.push(...openAsks(answer).map(decisionMessage));
  answer.state = 'streaming';
}

export function parseChunk(data: string): Chunk {
  try {
    const chunk: unknown = JSON.parse(data);
    if (typeof chunk === 'object' && chunk !== null) return chunk;
  } catch {
    // below
  }
  throw new ApiError(502, 'INVALID_ANSWER', `The server sent something that is not JSON: ${data.slice(0, 200)}`);
}
