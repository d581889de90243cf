/** Links between the files of a skill. */
import { href } from '../../../app/router.svelte';
import type { Skill } from '../types';

/** The address of the file that a relative link in another file leads to; undefined if the skill has no such file. */
export function fileLink(skill: Pick<Skill, 'name' | 'files'>, from: string, address: string): string | undefined {
  const path = resolvePath(from, address);
  return skill.files.some((file) => file.path === path) ? href(['skills', skill.name, 'files'], { path }) : undefined;
}

export function resolvePath(from: string, address: string): string | undefined {
  if (/^[a-z][a-z0-9+.-]*:|^\//i.test(address)) return undefined;
  let relative: string;
  try {
    relative = decodeURIComponent(address.replace(/[?#].*$/s, ''));
  } catch {
    return undefined;
  }
  const parts = from.split('/').slice(0, -1);
  for (const part of relative.split('/')) {
    if (part === '..') {
      if (parts.pop() === undefined) return undefined;
    } else if (part !== '.' && part !== '') parts.push(part);
  }
  return parts.join('/');
}
