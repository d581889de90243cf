-- Workspaces that last between runs, and the conversations that they belong to.
CREATE TABLE workspaces (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    files INTEGER NOT NULL,
    skills TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE workspace_links (
    digest TEXT PRIMARY KEY,
    workspace TEXT
) WITHOUT ROWID;
CREATE INDEX workspace_links_by_workspace ON workspace_links (workspace);
