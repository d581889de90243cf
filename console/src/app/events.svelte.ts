import { coalesced } from './coalesced';
import { live } from './live.svelte';

/** Call a function on these events, once for many of them. Must be called while a component is created. */
export function onEvents(names: readonly string[], act: () => void, pauseMs?: number): void {
  $effect(() => {
    const { call, stop } = coalesced(act, pauseMs);
    const off = live.on(names, call);
    return () => {
      off();
      stop();
    };
  });
}
