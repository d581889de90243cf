/** The files of a skill as the rows of a tree. */
export interface SkillFile {
  path: string;
  size: number;
}

export interface TreeRow {
  /** Of the file, or of the folder without a slash at its end. */
  path: string;
  name: string;
  /** From 1. */
  level: number;
  /** Null for a folder. */
  size: number | null;
  isOpen: boolean;
  /** Place among its siblings, from 1, and how many there are. */
  position: number;
  siblings: number;
}

interface Folder {
  path: string;
  folders: Map<string, Folder>;
  files: { name: string; file: SkillFile }[];
}

function emptyFolder(path: string): Folder {
  return { path, folders: new Map(), files: [] };
}

function folderOf(files: readonly SkillFile[]): Folder {
  const root = emptyFolder('');
  for (const file of files) {
    const parts = file.path.split('/');
    const name = parts.pop()!;
    let folder = root;
    for (const part of parts) {
      let next = folder.folders.get(part);
      if (next === undefined) {
        next = emptyFolder(folder.path === '' ? part : `${folder.path}/${part}`);
        folder.folders.set(part, next);
      }
      folder = next;
    }
    folder.files.push({ name, file });
  }
  return root;
}

/** The rows that are visible: folders first, and what is in the open ones. */
export function treeRows(files: readonly SkillFile[], isOpen: (folder: string) => boolean): TreeRow[] {
  const rows: TreeRow[] = [];
  const add = (folder: Folder, level: number): void => {
    const siblings = folder.folders.size + folder.files.length;
    let position = 0;
    for (const [name, child] of [...folder.folders].sort(([a], [b]) => compare(a, b))) {
      const opened = isOpen(child.path);
      rows.push({ path: child.path, name, level, size: null, isOpen: opened, position: ++position, siblings });
      if (opened) add(child, level + 1);
    }
    for (const { name, file } of folder.files.sort((a, b) => compare(a.name, b.name))) {
      rows.push({ path: file.path, name, level, size: file.size, isOpen: false, position: ++position, siblings });
    }
  };
  add(folderOf(files), 1);
  return rows;
}

/** SKILL.md is what one looks for first. */
function compare(a: string, b: string): number {
  return rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0);
}

function rank(name: string): number {
  return /^skill\.md$/i.test(name) ? 0 : 1;
}

/** The folders that contain a file. */
export function foldersOf(path: string): string[] {
  const parts = path.split('/').slice(0, -1);
  return parts.map((_, index) => parts.slice(0, index + 1).join('/'));
}

export type TreeMove = { to: number } | { open: string } | { close: string } | { choose: number } | null;

/** What a key does in a tree, as the ARIA practices describe it. */
export function treeKey(key: string, rows: readonly TreeRow[], index: number): TreeMove {
  const row = rows[index];
  if (row === undefined) return null;
  switch (key) {
    case 'ArrowDown':
      return { to: Math.min(index + 1, rows.length - 1) };
    case 'ArrowUp':
      return { to: Math.max(index - 1, 0) };
    case 'Home':
      return { to: 0 };
    case 'End':
      return { to: rows.length - 1 };
    case 'ArrowRight':
      if (row.size !== null) return null;
      return row.isOpen ? { to: Math.min(index + 1, rows.length - 1) } : { open: row.path };
    case 'ArrowLeft': {
      if (row.size === null && row.isOpen) return { close: row.path };
      const parent = rows.slice(0, index).findLastIndex((other) => other.level < row.level);
      return parent === -1 ? null : { to: parent };
    }
    case 'Enter':
    case ' ':
      if (row.size === null) return row.isOpen ? { close: row.path } : { open: row.path };
      return { choose: index };
  }
  if (key.length !== 1) return null;
  const letter = key.toLowerCase();
  for (let step = 1; step <= rows.length; step += 1) {
    const next = (index + step) % rows.length;
    if (rows[next]!.name.toLowerCase().startsWith(letter)) return { to: next };
  }
  return null;
}
