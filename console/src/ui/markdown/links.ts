/** Where relative links of a Markdown text lead to; the one who draws the text knows. */
import { getContext, setContext } from 'svelte';

export type Resolver = (address: string) => string | undefined;

const KEY = Symbol('relative links');

export function setResolver(resolver: Resolver): void {
  setContext(KEY, resolver);
}

export function getResolver(): Resolver {
  return getContext<Resolver | undefined>(KEY) ?? (() => undefined);
}
