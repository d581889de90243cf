-- Folders of a workspace, which were counted as files.
ALTER TABLE workspaces ADD COLUMN folders INTEGER NOT NULL DEFAULT 0;
