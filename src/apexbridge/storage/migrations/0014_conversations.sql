-- Only conversations whose messages no other answered conversation has are linked to a workspace. Earlier links did not
-- know about answers without files.
DROP TABLE workspace_links;
CREATE TABLE workspace_links (
    digest TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    linked_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX workspace_links_by_workspace ON workspace_links (workspace);

-- Files that clients sent in chat messages: where each `file` part was stored.
CREATE TABLE workspace_parts (
    number INTEGER PRIMARY KEY,
    workspace TEXT NOT NULL,
    part TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    UNIQUE (workspace, part)
);
