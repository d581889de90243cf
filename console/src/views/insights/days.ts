/** Ranges of days in UTC, as the server counts them. */
const DAY_MS = 86_400_000;

function isoDate(milliseconds: number): string {
  return new Date(milliseconds).toISOString().slice(0, 10);
}

/** The Monday of the week of a day. */
export function monday(date: string): string {
  const time = Date.parse(`${date}T00:00:00Z`);
  return isoDate(time - ((new Date(time).getUTCDay() + 6) % 7) * DAY_MS);
}

/** The last `count` days up to today, the oldest first; for weeks, their Mondays. */
export function lastDays(count: number, by: 'day' | 'week', now: number = Date.now()): string[] {
  const days = Array.from({ length: count }, (_, index) => isoDate(now - (count - 1 - index) * DAY_MS));
  return by === 'day' ? days : [...new Set(days.map(monday))];
}

/** The values of some days in the order of `dates`; 0 for days without one. */
export function filled(dates: readonly string[], points: readonly { date: string; count: number }[]): number[] {
  const counts = new Map(points.map((point) => [point.date, point.count]));
  return dates.map((date) => counts.get(date) ?? 0);
}
