import { expect, test } from 'vitest';

import { toCsv } from './csv';

test('texts are quoted where they must be', () => {
  expect(toCsv(['name', 'note'], [['a', 'says "hi", twice\nover']])).toBe(
    'name,note\r\na,"says ""hi"", twice\nover"\r\n',
  );
});

test('missing values are empty, numbers stay numbers', () => {
  expect(toCsv(['a', 'b', 'c'], [[null, -1.5, undefined]])).toBe('a,b,c\r\n,-1.5,\r\n');
});

test.each(['=1+1', '+1', '-1', '@sum', '\tx'])('%j does not become a formula', (text) => {
  expect(toCsv(['a'], [[text]])).toBe(`a\r\n'${text}\r\n`);
});
