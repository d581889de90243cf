/** How a skill's place for a request changes. 1 is the first place; null means that it is not found. */
export type RankMove = 'up' | 'down' | 'same' | 'found' | 'lost' | 'absent';

export interface RankChange {
  move: RankMove;
  /** By how many places; 0 if it was or is not found. */
  by: number;
}

export function rankChange(before: number | null, after: number | null): RankChange {
  if (before === null) return { move: after === null ? 'absent' : 'found', by: 0 };
  if (after === null) return { move: 'lost', by: 0 };
  if (after === before) return { move: 'same', by: 0 };
  return after < before ? { move: 'up', by: before - after } : { move: 'down', by: after - before };
}

export const ARROWS: Record<RankMove, string> = { up: '▲', found: '▲', down: '▼', lost: '▼', same: '=', absent: '–' };
export const TONES: Record<RankMove, 'good' | 'bad' | 'muted'> = {
  up: 'good',
  found: 'good',
  down: 'bad',
  lost: 'bad',
  same: 'muted',
  absent: 'muted',
};
