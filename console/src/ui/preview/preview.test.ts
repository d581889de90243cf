import { describe, expect, it } from 'vitest';

import { indented, indentedIfJson } from './json';
import { kindOf, textOf } from './kinds';
import { readTable } from './table';

describe('tables', () => {
  it('have quoted cells with delimiters, quotation marks and line breaks', () => {
    const table = readTable('a,b\n"x, ""y""\nz",2\r\n,\n', 10, 10);
    expect(table.rows).toEqual([
      ['a', 'b'],
      ['x, "y"\nz', '2'],
      ['', ''],
    ]);
  });

  it('find their delimiter', () => {
    expect(readTable('a;b\n1;2,5', 10, 10).rows).toEqual([
      ['a', 'b'],
      ['1', '2,5'],
    ]);
  });

  it('are cut and counted', () => {
    const table = readTable('1,2,3\n'.repeat(1000), 5, 2);
    expect(table.rows).toHaveLength(5);
    expect(table.rows[0]).toEqual(['1', '2']);
    expect([table.total, table.columns]).toEqual([1000, 3]);
  });

  it('that are broken off end', () => {
    expect(readTable('a,"b', 10, 10).rows).toEqual([['a', 'b']]);
    expect(readTable('"', 10, 10).rows).toEqual([['']]);
    expect(readTable('', 10, 10).rows).toEqual([]);
  });
});

describe('JSON', () => {
  it('has line breaks, and every token stays as it was', () => {
    expect(indented('{"a":12345678901234567890,"a":[1e400,{}],"b":[]}')).toBe(
      '{\n  "a": 12345678901234567890,\n  "a": [\n    1e400,\n    {}\n  ],\n  "b": []\n}',
    );
    expect(indented('{"text":"a, [b] {c}: \\"d\\""}')).toBe('{\n  "text": "a, [b] {c}: \\"d\\""\n}');
  });

  it('that is none stays as it is', () => {
    expect(indentedIfJson('{not json}')).toBe('{not json}');
  });
});

it('knows kinds by names, and text by its bytes', () => {
  expect(['a.PNG', 'b.csv', 'c.md', 'd.json', 'e.py', 'Makefile'].map(kindOf)).toEqual([
    'image',
    'table',
    'markdown',
    'json',
    'text',
    'text',
  ]);
  expect(textOf(new TextEncoder().encode('日本'), true)).toBe('日本');
  expect(textOf(new TextEncoder().encode('日本').slice(0, 4), false)).toBe('日');
  expect(textOf(new Uint8Array([0x89, 0x50, 0, 0, 0, 1]), true)).toBeNull();
  expect(textOf(new Uint8Array([]), true)).toBe('');
});
