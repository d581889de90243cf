import { expect, it } from 'vitest';

import { asCommand, asCurl, asPython, pythonLiteral, requestOf } from './request';

const CHOICES = { script: '', value: {}, args: '', timeout: '', workspace: '', files: [] };

it('sends only what was entered', () => {
  expect(requestOf(CHOICES)).toEqual({});
  expect(
    requestOf({
      script: 'scripts/x.py',
      value: { a: 1, b: undefined },
      args: 'one two\n\nthree',
      timeout: '2.5',
      workspace: ' w ',
      files: [{ id: 'upload-1', name: 'a.csv' }],
    }),
  ).toEqual({
    script: 'scripts/x.py',
    input: { a: 1 },
    args: ['one two', 'three'],
    timeout: 2500,
    workspace: 'w',
    files: ['upload-1'],
  });
  expect(requestOf({ ...CHOICES, timeout: 'soon' })).toEqual({});
});

it('quotes what a shell would read', () => {
  const request = requestOf({ ...CHOICES, value: { text: "it's $HOME `x`" } });
  expect(asCurl('http://h', 'a', request, true)).toContain(`-d '{"input":{"text":"it'\\''s $HOME \`x\`"}}'`);
  expect(asCurl('http://h', 'a', request, true)).toContain('$APEX_API_KEY');
  expect(asCommand('http://h', 'a', { args: ['--flag', 'a b'] }, [{ name: 'my file.csv' }])).toBe(
    "apex skills run a --file 'my file.csv' --url http://h -- --flag 'a b'",
  );
});

it('writes values as Python does', () => {
  expect(pythonLiteral({ a: [true, null, 'x"y\n'], b: undefined })).toBe('{"a": [True, None, "x\\"y\\n"]}');
  expect(asPython('http://h', 'a', {}, false)).not.toContain('os.environ');
});
