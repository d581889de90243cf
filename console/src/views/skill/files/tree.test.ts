import { expect, test } from 'vitest';

import { foldersOf, treeKey, treeRows } from './tree';

const FILES = ['b.txt', 'SKILL.md', 'scripts/lib/x.py', 'scripts/execute.py', 'a/1.txt'].map((path) => ({
  path,
  size: 1,
}));

test('folders come first, then SKILL.md, then the other files', () => {
  expect(treeRows(FILES, () => false).map((row) => row.path)).toEqual(['a', 'scripts', 'SKILL.md', 'b.txt']);
  const rows = treeRows(FILES, (path) => path === 'scripts');
  expect(rows.map((row) => [row.path, row.level, row.position, row.siblings])).toEqual([
    ['a', 1, 1, 4],
    ['scripts', 1, 2, 4],
    ['scripts/lib', 2, 1, 2],
    ['scripts/execute.py', 2, 2, 2],
    ['SKILL.md', 1, 3, 4],
    ['b.txt', 1, 4, 4],
  ]);
});

test('names of the language are names like others', () => {
  const rows = treeRows([{ path: '__proto__/constructor', size: 3 }], () => true);
  expect(rows.map((row) => row.name)).toEqual(['__proto__', 'constructor']);
});

test('keys move, open, close and choose', () => {
  const rows = treeRows(FILES, (path) => path === 'scripts');
  expect(treeKey('ArrowDown', rows, 0)).toEqual({ to: 1 });
  expect(treeKey('ArrowUp', rows, 0)).toEqual({ to: 0 });
  expect(treeKey('ArrowRight', rows, 0)).toEqual({ open: 'a' });
  expect(treeKey('ArrowRight', rows, 1)).toEqual({ to: 2 });
  expect(treeKey('ArrowLeft', rows, 1)).toEqual({ close: 'scripts' });
  expect(treeKey('ArrowLeft', rows, 3)).toEqual({ to: 1 });
  expect(treeKey('ArrowLeft', rows, 4)).toBeNull();
  expect(treeKey('Enter', rows, 4)).toEqual({ choose: 4 });
  expect(treeKey(' ', rows, 0)).toEqual({ open: 'a' });
  expect(treeKey('End', rows, 0)).toEqual({ to: 5 });
  expect(treeKey('s', rows, 1)).toEqual({ to: 4 });
  expect(treeKey('F5', rows, 1)).toBeNull();
});

test('20,000 files are a list of rows at once', () => {
  const many = Array.from({ length: 20_000 }, (_, index) => ({ path: `d${index % 100}/f${index}.txt`, size: index }));
  expect(treeRows(many, () => true)).toHaveLength(20_100);
});

test('folders of a path', () => {
  expect(foldersOf('a/b/c.txt')).toEqual(['a', 'a/b']);
  expect(foldersOf('c.txt')).toEqual([]);
});
