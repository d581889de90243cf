/** The address of the page: `#/view/name?filter=value`. Every view and its filters have one. */
type Query = Record<string, string | number | boolean | null | undefined>;

function parse(hash: string): { path: string[]; query: URLSearchParams } {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  return { path: path.split('/').filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand, not a link of this page
  }
}

/** The link to a view. Empty filters are left out. */
export function href(path: readonly string[], query: Query = {}): string {
  const filters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '' && value !== false) filters.set(name, String(value));
  }
  const text = filters.toString();
  return `#/${path.map(encodeURIComponent).join('/')}${text && `?${text}`}`;
}

class Route {
  #current = $state.raw(parse(location.hash));

  constructor() {
    window.addEventListener('hashchange', () => this.#read());
    window.addEventListener('popstate', () => this.#read());
  }

  #read(): void {
    this.#current = parse(location.hash);
  }

  /** The parts of the path; the first one is the view. */
  get path(): string[] {
    return this.#current.path;
  }

  get query(): URLSearchParams {
    return this.#current.query;
  }

  /** A filter of the address; empty if it has none. */
  filter(name: string): string {
    return this.query.get(name) ?? '';
  }

  go(path: readonly string[], query: Query = {}, { replace = false } = {}): void {
    const address = href(path, query);
    if (replace) history.replaceState(history.state, '', address);
    else history.pushState(null, '', address);
    this.#read();
  }

  /** Change filters of this view. Typing replaces the address, so that "back" leaves the view. */
  setFilters(changes: Query, { replace = true } = {}): void {
    this.go(this.path, { ...Object.fromEntries(this.query), ...changes }, { replace });
  }
}

export const route = new Route();
