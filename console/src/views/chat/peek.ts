/** What the folded line of a tool call says. */
import type { ToolCall } from './turns';

export function parsedArguments(call: ToolCall): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(call.arguments);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // truncated, or not JSON at all: shown as text
  }
  return {};
}

/** Arguments for people: indented, if they are JSON. */
export function prettyArguments(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const PEEK_CHARACTERS = 160;

/** One line of a text: what somebody looks for first. */
export function firstLine(text: string): string {
  const line = text
    .split('\n')
    .map((part) => part.trim())
    .find((part) => part !== '');
  return (line ?? '').slice(0, PEEK_CHARACTERS);
}

export interface Source {
  language: string;
  code: string;
}

/** The source of a code call. */
export function sourceOf(call: ToolCall): Source | undefined {
  if (call.kind !== 'code') return undefined;
  const { language, code } = parsedArguments(call);
  if (typeof code !== 'string') return undefined;
  return { language: typeof language === 'string' ? language : '', code };
}

/** What a call is about: the query, the skill, the first line of the code, or its arguments. */
export function subject(call: ToolCall): string {
  const fields = parsedArguments(call);
  const source = sourceOf(call);
  if (source) return firstLine(source.code);
  for (const name of ['name', 'query', 'path', 'expression', 'url']) {
    const value = fields[name];
    if (typeof value === 'string' && value !== '') return firstLine(value);
  }
  return Object.keys(fields).length > 0 || call.arguments.length > 2 ? firstLine(call.arguments) : '';
}

/** The server marks output that is no instruction for the model; people need no such line. */
const MARK = /^\[Output of the (?:skill|tool) [^\n]*\]\n/;

/** The first line of a result. */
export function resultPeek(call: ToolCall): string {
  return call.result ? firstLine(call.result.replace(MARK, '')) : '';
}
