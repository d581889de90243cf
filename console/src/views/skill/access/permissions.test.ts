import { expect, test } from 'vitest';

import { parsePermission } from './permissions';

test('permissions in their parts', () => {
  expect(parsePermission('net:api.example.com:443')).toEqual({ kind: 'net', host: 'api.example.com', port: '443' });
  expect(parsePermission('net:[::1]:80')).toEqual({ kind: 'net', host: '[::1]', port: '80' });
  expect(parsePermission('secret:KEY')).toEqual({ kind: 'secret', name: 'KEY' });
  expect(parsePermission('env:HOME')).toEqual({ kind: 'env', name: 'HOME' });
  expect(parsePermission('fs:ro:/srv/a:b')).toEqual({ kind: 'fs', path: '/srv/a:b' });
});

test('other texts are no permissions', () => {
  for (const text of ['', 'net', 'net:host', 'fs:rw:/', 'root', 'secret:', ':x'])
    expect(parsePermission(text)).toEqual({ kind: 'other' });
});
