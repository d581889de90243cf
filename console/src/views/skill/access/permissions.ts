/** A permission in its parts: `net:api.example.com:443`, `env:NAME`, `secret:NAME`, `fs:ro:/path`. */
export type Permission =
  | { kind: 'net'; host: string; port: string }
  | { kind: 'env' | 'secret'; name: string }
  | { kind: 'fs'; path: string }
  | { kind: 'other' };

export function parsePermission(text: string): Permission {
  const separator = text.indexOf(':');
  const kind = text.slice(0, separator);
  const body = text.slice(separator + 1);
  if (kind === 'net' && body.includes(':')) {
    const port = body.lastIndexOf(':');
    return { kind, host: body.slice(0, port), port: body.slice(port + 1) };
  }
  if ((kind === 'env' || kind === 'secret') && body !== '') return { kind, name: body };
  if (kind === 'fs' && body.startsWith('ro:')) return { kind, path: body.slice(3) };
  return { kind: 'other' };
}
