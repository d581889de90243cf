/** What one should know about a skill before it is used, as short marks. */

import type { Tone } from '../../ui/Badge.svelte';
import type { Health } from './filters';
import type { SkillSummary } from './types';

export interface Mark {
  name: 'off' | 'sandbox' | 'direct' | Health;
  tone: Tone;
  count?: number;
}

/** The marks of a skill, how it runs first. */
export function marksOf(
  skill: Pick<SkillSummary, 'mode' | 'enabled' | 'dangerous' | 'warningCount' | 'needsAccess' | 'needsPackages'>,
): Mark[] {
  const marks: Mark[] = [{ name: skill.mode, tone: skill.mode === 'sandbox' ? 'accent' : 'neutral' }];
  if (!skill.enabled) marks.unshift({ name: 'off', tone: 'neutral' });
  if (skill.dangerous) marks.push({ name: 'confirm', tone: 'warn' });
  if (skill.needsAccess) marks.push({ name: 'access', tone: 'warn' });
  if (skill.needsPackages) marks.push({ name: 'packages', tone: 'warn' });
  if (skill.warningCount) marks.push({ name: 'warnings', tone: 'warn', count: skill.warningCount });
  return marks;
}

/** The share of calls that went well; undefined without any. */
export function successOf(skill: Pick<SkillSummary, 'calls' | 'failures'>): number | undefined {
  const calls = skill.calls ?? 0;
  return calls === 0 ? undefined : Math.max(0, calls - (skill.failures ?? 0)) / calls;
}
