/**
 * Names with their invisible characters shown, such as `‹U+202E›`: control characters, characters without a width, and
 * those that turn the direction of the text. A file name or a permission must not look like another one.
 */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\u115f\u1160\u3164\uffa0]|\p{Cs}/gu;
/** Joins emoji and letters of some scripts; on its own it changes nothing that could deceive. */
const JOINER = '\u200d';

export function visible(name: string): string {
  return name.replace(INVISIBLE, (character, position: number, text: string) =>
    character === JOINER && /\p{Extended_Pictographic}|\ufe0f/u.test(text.slice(Math.max(0, position - 2), position))
      ? character
      : `‹U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}›`,
  );
}
