/** What was typed for a skill and not saved yet. It survives a reload of the page, in this tab only. */
const PREFIX = 'apexbridge.skill';

export interface Draft {
  text: string;
  /** The description that it began with, to find out whether somebody else changed it since. */
  base: string;
}

function read(key: string): unknown {
  try {
    return JSON.parse(sessionStorage.getItem(key) ?? 'null');
  } catch {
    return null;
  }
}

function write(key: string, value: unknown): void {
  try {
    if (value === null) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Without space, the text is still in the page.
  }
}

export function draftOf(skill: string): Draft | null {
  const draft = read(`${PREFIX}.draft.${skill}`) as Partial<Draft> | null;
  return typeof draft?.text === 'string' && typeof draft.base === 'string' ? (draft as Draft) : null;
}

export function keepDraft(skill: string, draft: Draft | null): void {
  write(`${PREFIX}.draft.${skill}`, draft);
}

export function requestsOf(skill: string): string[] {
  const requests = read(`${PREFIX}.requests.${skill}`);
  return Array.isArray(requests) ? requests.filter((one) => typeof one === 'string') : [];
}

export function keepRequests(skill: string, requests: readonly string[]): void {
  write(`${PREFIX}.requests.${skill}`, requests.length > 0 ? requests : null);
}
