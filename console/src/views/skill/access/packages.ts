/** What a skill declares, what was added, and what its code uses, as one list. */
import type { DependencyView, DetectedPackage } from '../types';

export type PackageState = 'installed' | 'not-installed' | 'missing' | 'bundle' | 'unknown';

export interface PackageRow {
  kind: DetectedPackage['kind'];
  /** As it is shown: `pypdf>=4`, or the module if its package is unknown. */
  label: string;
  /** Null if it is only used, not requested. */
  requestedBy: 'declared' | 'added' | null;
  state: PackageState;
  bundle: string | null;
  /** Where the code uses it first. */
  usedIn: { file: string; line: number } | null;
  /** As the API adds it; null if that cannot be done. */
  spec: string | null;
}

/** The name of a Python package as the index compares it. */
function canonical(name: string): string {
  return name.toLowerCase().replace(/[-_.]+/g, '-');
}

export function pythonName(requirement: string): string {
  return canonical(/^[A-Za-z0-9._-]+/.exec(requirement.trim())?.[0] ?? requirement);
}

export function nodeName(requirement: string): string {
  const separator = requirement.indexOf('@', 1);
  return separator === -1 ? requirement : requirement.slice(0, separator);
}

export function packageRows(view: DependencyView): PackageRow[] {
  const detected = [...(view.detected ?? [])];
  const used = (kind: string, name: string): DetectedPackage | undefined => {
    const index = detected.findIndex(
      (one) =>
        one.kind === kind &&
        one.package !== null &&
        (kind === 'python' ? canonical(one.package) : one.package) === name,
    );
    return index === -1 ? undefined : detected.splice(index, 1)[0];
  };
  const requested = (kind: 'python' | 'node', requirement: string): PackageRow => {
    const name = kind === 'python' ? pythonName(requirement) : nodeName(requirement);
    const spec = kind === 'node' ? `npm:${requirement}` : requirement;
    const found = used(kind, name);
    return {
      kind,
      label: requirement,
      requestedBy: view.added.includes(spec) ? 'added' : 'declared',
      state: view.installed || found?.status === 'installed' ? 'installed' : 'not-installed',
      bundle: null,
      usedIn: found ? { file: found.file, line: found.line } : null,
      spec,
    };
  };
  const rows = [
    ...view.python.map((requirement) => requested('python', requirement)),
    ...view.node.map((requirement) => requested('node', requirement)),
  ];
  for (const found of detected) {
    rows.push({
      kind: found.kind,
      label: found.package ?? found.name,
      requestedBy: null,
      state: found.status === 'declared' ? 'not-installed' : found.status,
      bundle: found.bundle ?? null,
      usedIn: { file: found.file, line: found.line },
      spec:
        found.kind === 'program' || found.package === null
          ? null
          : found.kind === 'node'
            ? `npm:${found.package}`
            : found.package,
    });
  }
  return rows;
}

/** The bundles that have something which is missing. */
export function missingBundles(rows: readonly PackageRow[]): string[] {
  return [...new Set(rows.filter((row) => row.state === 'missing' && row.bundle).map((row) => row.bundle!))];
}
