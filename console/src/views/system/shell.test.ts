import { expect, test } from 'vitest';

import { quoted, shellWords } from './shell';

test.each([
  ['npx -y @scope/server  /data', ['npx', '-y', '@scope/server', '/data']],
  [`run "two words" 'it''s' a\\ b`, ['run', 'two words', 'its', 'a b']],
  [`x "say \\"hi\\"" '\\n' ""`, ['x', 'say "hi"', '\\n', '']],
  [' --name="a b"c ', ['--name=a bc']],
  [`unfinished "quote here`, ['unfinished', 'quote here']],
  ['', []],
])('%s', (command, words) => {
  expect(shellWords(command)).toEqual(words);
});

test('quoted words are the same words', () => {
  const words = ['npx', "it's", '', 'a b', '"', '\\', '$HOME', '中文'];
  expect(shellWords(quoted(words))).toEqual(words);
});
