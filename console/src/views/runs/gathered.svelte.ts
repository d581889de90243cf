import { live } from '../../app/live.svelte';

/** Call a function on these events, once for many of them. Must be called while a component is created. */
export function onEvents(names: readonly string[], act: () => void): void {
  $effect(() => {
    const gatheredAct = gathered(act);
    const off = live.on(names, gatheredAct.call);
    return () => {
      off();
      gatheredAct.stop();
    };
  });
}

/** Call a function once for many events: at the first, and again after a pause if there were more. */
export function gathered(act: () => void, pauseMs = 500): { call: () => void; stop: () => void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isDue = false;
  function after(): void {
    timer = undefined;
    if (isDue) call();
  }
  function call(): void {
    if (timer !== undefined) {
      isDue = true;
      return;
    }
    isDue = false;
    act();
    timer = setTimeout(after, pauseMs);
  }
  return { call, stop: () => clearTimeout(timer) };
}
