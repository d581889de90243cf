/** The time of day, for texts such as "5 min ago". One timer for the whole page, only while it is visible. */
class Now {
  minute = $state(Date.now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.minute = Date.now();
    }, 30_000);
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden) this.minute = Date.now();
    });
  }
}

export const now = new Now();
