import { t } from './words';

/** An answer of the server that is not a success, or no answer at all. */
export class ApiError extends Error {
  constructor(
    /** The HTTP status; 0 without an answer. */
    readonly status: number,
    /** The server's error code, or UNREACHABLE. */
    readonly code: string,
    message: string,
    /** Further fields of the error, such as the fields that are invalid. */
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
    this.name = 'ApiError';
  }

  get isUnreachable(): boolean {
    return this.status === 0;
  }

  get isForbidden(): boolean {
    return this.status === 403;
  }

  get isMissing(): boolean {
    return this.status === 404;
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'AbortError';
}

export function connectionClosed(): ApiError {
  return new ApiError(0, 'UNREACHABLE', t.closed);
}

/** Any thrown value as an ApiError. */
export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof TypeError) return new ApiError(0, 'UNREACHABLE', t.away);
  return new ApiError(0, 'UNEXPECTED', error instanceof Error ? error.message : String(error));
}

/** The error of a response. Both forms of the server are read: its own, and that of the OpenAI API below /v1. */
export function errorFrom(status: number, body: unknown): ApiError {
  const document = (typeof body === 'object' && body !== null ? body : {}) as Record<string, unknown>;
  const fields = typeof document.error === 'object' && document.error !== null ? document.error : document;
  const { code, message, ...details } = fields as Record<string, unknown>;
  const text =
    typeof message === 'string' ? message : typeof body === 'string' && body !== '' ? body : `HTTP ${status}`;
  return new ApiError(status, typeof code === 'string' ? code : `HTTP_${status}`, text, details);
}
