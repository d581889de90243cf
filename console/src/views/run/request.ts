/** The request that starts a run, and the same as a command. */
import { cleaned, type Values } from '../../ui/form/values';

export interface RunRequest {
  input?: Values;
  script?: string;
  args?: string[];
  files?: string[];
  timeout?: number;
  workspace?: string;
  approval?: string;
  wait?: boolean;
}

export interface RunChoices {
  script: string;
  value: Values;
  args: string;
  timeout: string;
  workspace: string;
  files: readonly { id: string; name: string }[];
}

export function requestOf(choices: RunChoices): RunRequest {
  const request: RunRequest = {};
  const input = cleaned(choices.value) as Values;
  if (Object.keys(input).length > 0) request.input = input;
  if (choices.script !== '') request.script = choices.script;
  const args = choices.args.split('\n').filter((line) => line.trim() !== '');
  if (args.length > 0) request.args = args;
  if (choices.files.length > 0) request.files = choices.files.map((file) => file.id);
  const seconds = Number(choices.timeout);
  if (choices.timeout.trim() !== '' && Number.isFinite(seconds) && seconds > 0) {
    request.timeout = Math.max(1, Math.round(seconds * 1000));
  }
  if (choices.workspace.trim() !== '') request.workspace = choices.workspace.trim();
  return request;
}

function quoted(word: string): string {
  return /^[A-Za-z0-9_./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function asCurl(base: string, skill: string, request: RunRequest, needsKey: boolean): string {
  const parts = [
    `curl -s -X POST ${quoted(`${base}/api/skills/${encodeURIComponent(skill)}/execute`)}`,
    `-H 'Content-Type: application/json'`,
    ...(needsKey ? ['-H "Authorization: Bearer $APEX_API_KEY"'] : []),
    `-d ${quoted(JSON.stringify(request))}`,
  ];
  return parts.join(' \\\n  ');
}

export function asCommand(
  base: string,
  skill: string,
  request: RunRequest,
  files: readonly { name: string }[],
): string {
  const words = ['apex', 'skills', 'run', skill];
  if (request.input !== undefined) words.push('--input', JSON.stringify(request.input));
  if (request.script !== undefined) words.push('--script', request.script);
  for (const file of files) words.push('--file', file.name);
  if (request.timeout !== undefined) words.push('--timeout', String(request.timeout));
  if (request.workspace !== undefined) words.push('--workspace', request.workspace);
  words.push('--url', base);
  if (request.args !== undefined) words.push('--', ...request.args);
  return words.map(quoted).join(' ');
}

export function asPython(base: string, skill: string, request: RunRequest, needsKey: boolean): string {
  const headers = needsKey ? `\n    headers={"Authorization": f"Bearer {os.environ['APEX_API_KEY']}"},` : '';
  return `${needsKey ? 'import os\n\n' : ''}import httpx

answer = httpx.post(
    ${JSON.stringify(`${base}/api/skills/${encodeURIComponent(skill)}/execute`)},${headers}
    json=${pythonLiteral(request)},
    timeout=None,
)
print(answer.json())
`;
}

/** A value of JSON as Python writes it. */
export function pythonLiteral(value: unknown): string {
  if (value === null || value === undefined) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(', ')}]`;
  if (typeof value === 'object') {
    const fields = Object.entries(value).filter(([, inner]) => inner !== undefined);
    return `{${fields.map(([name, inner]) => `${JSON.stringify(name)}: ${pythonLiteral(inner)}`).join(', ')}}`;
  }
  return JSON.stringify(value);
}
