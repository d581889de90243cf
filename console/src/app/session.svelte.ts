/** Who uses this page, and what they may do. */
import { api, take, type Schemas } from '../api/client';
import { asApiError, type ApiError } from '../api/errors';

export type SessionInfo = Schemas['SessionInfo'];
export type Scope = 'read' | 'run' | 'chat' | 'admin';

class Session {
  info = $state.raw<SessionInfo | undefined>();
  error = $state.raw<ApiError | undefined>();

  async load(): Promise<void> {
    try {
      this.info = await take(api.GET('/api/session'));
      this.error = undefined;
    } catch (error) {
      this.error = asApiError(error);
    }
  }

  get needsKey(): boolean {
    return this.info !== undefined && this.info.keysRequired && !this.info.authenticated;
  }

  /** Whether an act may be offered. Before the answer is there, nothing is hidden. */
  may(scope: Scope): boolean {
    const scopes = this.info?.scopes;
    return scopes === undefined || scopes.includes(scope) || scopes.includes('admin');
  }
}

export const session = new Session();
