/** How a run is shown in one word. */
import type { Tone } from '../../ui/Badge.svelte';
import { t } from './words';

export interface Shown {
  text: string;
  tone: Tone;
}

export function shownState(state: string, status: string | null | undefined, errorCode?: string | null): Shown {
  if (state === 'pending') return { text: t.states.pending, tone: 'neutral' };
  if (state === 'running') return { text: t.states.running, tone: 'accent' };
  if (errorCode === 'CANCELLED') return { text: t.states.cancelled, tone: 'neutral' };
  if (status === 'success') return { text: t.statuses.success!, tone: 'good' };
  if (status === 'timeout') return { text: t.statuses.timeout!, tone: 'warn' };
  if (state === 'error' || status === 'error') return { text: t.states.error, tone: 'bad' };
  return { text: t.states.completed, tone: 'neutral' };
}
