/** How the places of hits differ between two wordings. */
import type { Schemas } from '../../api/client';

export type Match = Schemas['SkillMatch'];

/** A skill and a tool may have the same name. */
export function keyOf(match: Pick<Match, 'kind' | 'name'>): string {
  return `${match.kind ?? 'skill'}:${match.name}`;
}

/** The place of each hit, from 1. */
export function placesOf(matches: readonly Pick<Match, 'kind' | 'name'>[]): Map<string, number> {
  return new Map(matches.map((match, index) => [keyOf(match), index + 1]));
}

export type Difference = { kind: 'up' | 'down'; places: number } | { kind: 'same' | 'only' };

/** How a place compares with that of the other wording. */
export function differenceOf(place: number, other: number | undefined): Difference {
  if (other === undefined) return { kind: 'only' };
  if (other === place) return { kind: 'same' };
  return other > place ? { kind: 'up', places: other - place } : { kind: 'down', places: place - other };
}

/** The length of the bar for a rank, between 0 and 1: full for the first, half for the second. */
export function shareOfRank(rank: number | null | undefined): number {
  return rank === null || rank === undefined || rank < 1 ? 0 : 1 / rank;
}
