/** The API key of this browser tab. It is in `sessionStorage` only: never in an address, a log or another tab. */
const STORED_AS = 'apexbridge.key';

class KeyHolder {
  key = $state(sessionStorage.getItem(STORED_AS) ?? '');
  /** Whether the server refused a request without a key, or with this one. */
  isRefused = $state(false);

  set(key: string): void {
    // No header takes other characters, and no key has them: the server refuses what is left.
    this.key = key.trim().replace(/[^\x21-\x7e]/g, '?');
    this.isRefused = false;
    if (this.key === '') sessionStorage.removeItem(STORED_AS);
    else sessionStorage.setItem(STORED_AS, this.key);
  }

  /** The server refused a request. Ignored if another key has been entered since. */
  refused(used: string): void {
    if (used === this.key) this.isRefused = true;
  }
}

export const keyHolder = new KeyHolder();
