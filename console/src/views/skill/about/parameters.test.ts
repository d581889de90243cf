import { expect, test } from 'vitest';

import { parametersOf } from './parameters';

test('fields with type, default and limits', () => {
  const rows = parametersOf({
    type: 'object',
    required: ['title'],
    properties: {
      title: { type: 'string', description: 'The title' },
      rows: { type: 'integer', minimum: 0, maximum: 100, default: 5 },
      sign: { enum: ['.', ','] },
      tags: { type: 'array', items: { type: 'string' } },
      size: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
      place: { type: 'object', properties: { city: { type: 'string' } } },
    },
  });
  expect(rows.map(({ name, type, level }) => [name, type, level])).toEqual([
    ['title', 'string', 1],
    ['rows', 'integer 0–100', 1],
    ['sign', '"." | ","', 1],
    ['tags', 'string[]', 1],
    ['size', 'integer | null', 1],
    ['place', 'object', 1],
    ['city', 'string', 2],
  ]);
  expect(rows[0]).toMatchObject({ isRequired: true, default: undefined, description: 'The title' });
  expect(rows[1]).toMatchObject({ isRequired: false, default: '5' });
});

test('schemas that are no schemas, that are endless or huge', () => {
  expect(parametersOf(null)).toEqual([]);
  expect(parametersOf({ properties: 7 })).toEqual([]);
  expect(parametersOf({ properties: { a: null, b: [] } }).map((row) => row.type)).toEqual(['any', 'any']);
  const endless: Record<string, unknown> = { type: 'object' };
  endless.properties = { self: endless };
  expect(parametersOf(endless)).toHaveLength(4);
  const huge = Object.fromEntries(Array.from({ length: 1000 }, (_, index) => [`f${index}`, {}]));
  expect(parametersOf({ properties: huge })).toHaveLength(200);
});
