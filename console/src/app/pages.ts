/** The last page that the server accepts, of any list. */
const LAST_PAGE = 1_000_000;

/** The page of a list that an address asks for; the first one if it has no such number. */
export function pageOf(query: URLSearchParams): number {
  const page = Number(query.get('page'));
  return Number.isSafeInteger(page) && page > 1 ? Math.min(page, LAST_PAGE) : 1;
}
