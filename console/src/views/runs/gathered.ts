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
