import { expect, test } from 'vitest';

import { countChanges, diffLines } from './diff';

const DIFF = `--- a/SKILL.md
+++ b/SKILL.md
@@ -1,4 +1,4 @@
 ---
-description: old
+description: new
 name: x
 ---
@@ -10 +10,2 @@ heading
-last
+last
+--- not a file name
\\ No newline at end of file`;

test('lines of a diff have their numbers', () => {
  const lines = diffLines(DIFF);
  expect(lines.map(({ kind, before, after }) => [kind, before, after])).toEqual([
    ['hunk', null, null],
    ['same', 1, 1],
    ['removed', 2, null],
    ['added', null, 2],
    ['same', 3, 3],
    ['same', 4, 4],
    ['hunk', null, null],
    ['removed', 10, null],
    ['added', null, 10],
    ['added', null, 11],
    ['note', null, null],
  ]);
  expect(lines[9]!.text).toBe('--- not a file name');
  expect(countChanges(lines)).toEqual({ added: 3, removed: 2 });
});

test('removed and added lines that look like file names are lines', () => {
  const lines = diffLines('@@ -1,1 +1,1 @@\n--- a\n+++ b\n');
  expect(lines.slice(1).map(({ kind, text }) => [kind, text])).toEqual([
    ['removed', '-- a'],
    ['added', '++ b'],
  ]);
});

test('a diff that was cut, and text that is no diff, do no harm', () => {
  expect(diffLines('@@ -1,100 +1,100 @@\n a').map(({ text }) => text)).toEqual(['@@ -1,100 +1,100 @@', 'a']);
  expect(diffLines('hello\nworld')).toEqual([]);
  expect(diffLines('')).toEqual([]);
});
