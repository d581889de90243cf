/** A function that calls `act` at once, and for all calls within the pause that follows, once more after it. */
export function coalesced(act: () => void, pauseMs = 500): { call: () => void; stop: () => void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isCalled = false;
  function call(): void {
    if (timer !== undefined) {
      isCalled = true;
      return;
    }
    isCalled = false;
    act();
    timer = setTimeout(() => {
      timer = undefined;
      if (isCalled) call();
    }, pauseMs);
  }
  return { call, stop: () => clearTimeout(timer) };
}
