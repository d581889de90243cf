/** Addresses of files in the workspace of a conversation. */
export function workspaceFile(workspace: string, path: string): string {
  return `/api/workspaces/${encodeURIComponent(workspace)}/files/${path.split('/').map(encodeURIComponent).join('/')}`;
}

export function fileName(path: string): string {
  return path.split('/').at(-1) ?? path;
}
