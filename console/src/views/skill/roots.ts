import type { Skill } from './types';

/** Whether the skill is in the folder of the server itself, and not in one that it only reads. */
export function ownRoot(skill: Pick<Skill, 'source'>): boolean {
  return skill.source === 'installed';
}
