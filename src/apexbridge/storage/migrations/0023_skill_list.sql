-- What the list of skills shows and filters by. The folders are read again at the next start to fill it.
ALTER TABLE skills ADD COLUMN warning_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE skills ADD COLUMN permissions TEXT NOT NULL DEFAULT '[]';
ALTER TABLE skills ADD COLUMN needs TEXT NOT NULL DEFAULT '{}';
UPDATE skills SET signature = '';

-- All columns that the list is filtered and sorted by, so that no record has to be read.
CREATE INDEX skills_listed ON skills (
    name, enabled, declared_mode, entry, plugin, root, folder, dangerous, warning_count, permissions, content_hash,
    updated_at, installed_at, description, state
) WHERE state = 'live';
CREATE INDEX skills_by_update ON skills (updated_at DESC, name) WHERE state = 'live';
CREATE INDEX skills_by_install ON skills (installed_at DESC, name) WHERE state = 'live';
CREATE INDEX skills_with_needs ON skills (name, needs, state) WHERE state = 'live' AND needs <> '{}';

ALTER TABLE call_statistics ADD COLUMN last_called_at INTEGER;
UPDATE call_statistics SET last_called_at = (SELECT max(created_at) FROM runs WHERE skill = tool);
