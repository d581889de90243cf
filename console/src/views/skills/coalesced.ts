/** A function that calls `act` at once, and for all calls within the pause that follows, once more after it. */
export function coalesced(act: () => void, pauseMs = 400): () => void {
  let isPausing = false;
  let isCalled = false;
  const begin = (): void => {
    isPausing = true;
    act();
    setTimeout(() => {
      isPausing = false;
      if (isCalled) {
        isCalled = false;
        begin();
      }
    }, pauseMs);
  };
  return () => {
    if (isPausing) isCalled = true;
    else begin();
  };
}
