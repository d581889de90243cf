import { describe, expect, it } from 'vitest';

import { canBeDrawn, cleaned, fieldErrors, pathOf } from './values';

describe('errors of fields', () => {
  it('are read from the answer of the server', () => {
    const errors = [{ path: 'top', message: 'too large' }];
    expect(fieldErrors({ success: false, details: { tool: 'x', errors } })).toEqual(errors);
    expect(fieldErrors({ details: { errors: [1, null, { path: 2 }] } })).toEqual([]);
    expect(fieldErrors({})).toEqual([]);
  });

  it('are found where they belong, also with dots in a name', () => {
    const schema = { properties: { 'a.b': { properties: { c: {} } }, rows: { items: { properties: { x: {} } } } } };
    expect(pathOf('rows.0.x', { rows: [{}] }, schema)).toEqual(['rows', 0, 'x']);
    expect(pathOf('a.b.c', {}, schema)).toEqual(['a.b', 'c']);
    expect(pathOf('', {}, schema)).toEqual([]);
  });
});

it('sends no empty fields, and no field is lost', () => {
  expect(cleaned({ a: undefined, b: [undefined, 1], c: { d: undefined }, e: false, f: null })).toEqual({
    b: [null, 1],
    c: {},
    e: false,
    f: null,
  });
  expect(Object.keys(cleaned(JSON.parse('{"__proto__": 1}')) as object)).toEqual(['__proto__']);
});

it('draws schemas of objects of a bearable size', () => {
  expect(canBeDrawn({ type: 'object', properties: { a: { type: 'string' } } })).toBe(true);
  expect(canBeDrawn({ type: 'string' })).toBe(false);
  expect(canBeDrawn(null)).toBe(false);
  expect(canBeDrawn({ properties: Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`f${i}`, {}])) })).toBe(
    false,
  );
});
