/** How a file is shown, by its name. What it really holds decides between text and nothing to show. */
export type PreviewKind = 'text' | 'json' | 'table' | 'markdown' | 'image';

const IMAGES: Record<string, string> = {
  png: 'image/png',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  gif: 'image/gif',
  webp: 'image/webp',
  avif: 'image/avif',
  bmp: 'image/bmp',
  ico: 'image/x-icon',
  svg: 'image/svg+xml', // in an <img> it runs no scripts and loads nothing
};

export function extension(name: string): string {
  return /\.([a-z0-9]{1,12})$/i.exec(name)?.[1]?.toLowerCase() ?? '';
}

export function kindOf(name: string): PreviewKind {
  const ending = extension(name);
  if (ending in IMAGES) return 'image';
  if (ending === 'json') return 'json';
  if (ending === 'csv' || ending === 'tsv') return 'table';
  if (ending === 'md' || ending === 'markdown') return 'markdown';
  return 'text';
}

export function imageType(name: string): string {
  return IMAGES[extension(name)] ?? 'application/octet-stream';
}

const LOOKED_AT = 8000;

/** Whether bytes are text: UTF-8 or UTF-16 with a byte order mark, without NUL characters. */
export function textOf(bytes: Uint8Array, isWhole: boolean): string | null {
  const encoding =
    bytes[0] === 0xff && bytes[1] === 0xfe ? 'utf-16le' : bytes[0] === 0xfe && bytes[1] === 0xff ? 'utf-16be' : 'utf-8';
  const text = new TextDecoder(encoding).decode(bytes, { stream: !isWhole });
  const start = text.slice(0, LOOKED_AT);
  const unreadable = start.match(/[\u0000\ufffd]/g)?.length ?? 0;
  return unreadable > start.length / 50 ? null : text;
}
