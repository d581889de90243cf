import { expect, test } from 'vitest';

import { missingBundles, nodeName, packageRows, pythonName } from './packages';
import type { DetectedPackage } from '../types';

const found = (kind: DetectedPackage['kind'], name: string, status: DetectedPackage['status'], bundle?: string) =>
  ({ kind, name, package: name, status, bundle: bundle ?? null, file: 'scripts/x.py', line: 3 }) as DetectedPackage;

test('names of requirements', () => {
  expect(pythonName('Ruamel_Yaml>=0.18 ; python_version > "3"')).toBe('ruamel-yaml');
  expect(nodeName('@scope/thing@^9')).toBe('@scope/thing');
  expect(nodeName('docx')).toBe('docx');
});

test('declared, added and used packages are one list', () => {
  const rows = packageRows({
    python: ['pypdf>=4', 'six'],
    node: ['docx@^9'],
    added: ['six', 'npm:docx@^9'],
    sources: ['requirements.txt'],
    problems: [],
    installed: false,
    detected: [
      found('python', 'pypdf', 'declared'),
      found('python', 'pandas', 'missing', 'data'),
      found('program', 'pdftotext', 'missing'),
    ],
    commands: [],
  });
  expect(rows.map(({ label, requestedBy, state, spec }) => [label, requestedBy, state, spec])).toEqual([
    ['pypdf>=4', 'declared', 'not-installed', 'pypdf>=4'],
    ['six', 'added', 'not-installed', 'six'],
    ['docx@^9', 'added', 'not-installed', 'npm:docx@^9'],
    ['pandas', null, 'missing', 'pandas'],
    ['pdftotext', null, 'missing', null],
  ]);
  expect(rows[0]!.usedIn).toEqual({ file: 'scripts/x.py', line: 3 });
  expect(missingBundles(rows)).toEqual(['data']);
});
