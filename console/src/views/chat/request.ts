/** The request of a conversation, and the same as commands that can be copied. */
import { messagesOf, type Message, type Turn } from './turns';

export interface ChatOptions {
  /** Empty: the server's own choice. */
  model: string;
  tools: boolean;
  /** Skills that are offered without a search. */
  skills: string[];
  approvals: 'tool' | 'wait' | 'deny';
  system: string;
}

export const DEFAULT_OPTIONS: ChatOptions = { model: '', tools: true, skills: [], approvals: 'tool', system: '' };

export interface ChatRequestBody {
  model?: string;
  messages: Message[];
  stream: true;
  stream_options: { include_usage: true };
  x_bridge: Record<string, unknown>;
}

export function requestBody(turns: readonly Turn[], options: ChatOptions, workspace: string): ChatRequestBody {
  return {
    ...(options.model !== '' && { model: options.model }),
    messages: messagesOf(turns, options.system),
    stream: true,
    stream_options: { include_usage: true },
    x_bridge: options.tools
      ? {
          activity: true,
          approvals: options.approvals,
          workspace,
          ...(options.skills.length > 0 && { skills: options.skills }),
        }
      : { tools: false },
  };
}

/** The key is never copied: the commands read it from the environment. */
const KEY_VARIABLE = 'APEX_API_KEY';

/** The request as a command for a POSIX shell. The body is a here-document, so no size and no quote matters. */
export function asCurl(body: ChatRequestBody, base: string, needsKey: boolean): string {
  const key = needsKey ? ` \\\n  -H "Authorization: Bearer $${KEY_VARIABLE}"` : '';
  const json = JSON.stringify(body, null, 2);
  return `curl -sSN ${quoted(`${base}/v1/chat/completions`)} \\\n  -H 'Content-Type: application/json'${key} \\\n  --data-binary @- <<'JSON'\n${json}\nJSON\n`;
}

function quoted(text: string): string {
  return /^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The request for OpenAI's Python package. */
export function asPython(body: ChatRequestBody, base: string, needsKey: boolean): string {
  const { x_bridge: bridge, ...sent } = body;
  const fields = { model: '', ...sent }; // the package requires it; empty: the server's own choice
  const key = needsKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"';
  const named = Object.entries(fields).map(([name, value]) => `    ${name}=${python(value, 1)},\n`);
  return `${needsKey ? 'import os\n\n' : ''}from openai import OpenAI

client = OpenAI(base_url=${python(`${base}/v1`)}, api_key=${key})
chunks = client.chat.completions.create(
${named.join('')}    extra_body={"x_bridge": ${python(bridge, 1)}},
)
for chunk in chunks:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
`;
}

/** A JSON value as an expression of Python. */
export function python(value: unknown, depth = 0): string {
  if (value === null || value === undefined) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  // A string in JSON is one in Python, too.
  if (typeof value !== 'object') return JSON.stringify(value);
  const inner = '    '.repeat(depth + 1);
  const end = `\n${'    '.repeat(depth)}`;
  if (Array.isArray(value)) {
    if (value.length === 0) return '[]';
    return `[\n${value.map((item) => `${inner}${python(item, depth + 1)},`).join('\n')}${end}]`;
  }
  const entries = Object.entries(value as Record<string, unknown>).filter(([, item]) => item !== undefined);
  if (entries.length === 0) return '{}';
  return `{\n${entries.map(([name, item]) => `${inner}${JSON.stringify(name)}: ${python(item, depth + 1)},`).join('\n')}${end}}`;
}
