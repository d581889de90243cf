/** Characters of an output that cannot be seen, made visible: they could make a text look like another one. */

/** Control characters, and characters that turn the direction of the text after them. */
export const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u2028-\u202e\u2066-\u2069]/g;
const PICTURES = 0x2400; // ␀ ␁ ␂ …
const DELETE = 0x7f;
const PICTURE_OF_DELETE = '\u2421';

/** A visible stand-in for one character: ␀ for NUL, ‹U+202E› for a direction override. */
export function picture(character: string): string {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(PICTURES + code);
  if (code === DELETE) return PICTURE_OF_DELETE;
  return `‹U+${code.toString(16).toUpperCase().padStart(4, '0')}›`;
}
