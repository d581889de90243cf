-- Every skill folder that was seen on disk. Rebuilt from the disk whenever it is lost.
CREATE TABLE skills (
    root          TEXT    NOT NULL,
    folder        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('live', 'shadowed', 'broken')),
    reason        TEXT,
    filename      TEXT    NOT NULL DEFAULT 'SKILL.md',
    description   TEXT    NOT NULL DEFAULT '',
    version       TEXT,
    author        TEXT,
    category      TEXT,
    declared_mode TEXT,
    entry         TEXT,
    dangerous     INTEGER NOT NULL DEFAULT 0,
    enabled       INTEGER NOT NULL DEFAULT 1,
    plugin        TEXT,
    tags          TEXT    NOT NULL DEFAULT '[]',
    derived_tags  TEXT    NOT NULL DEFAULT '[]',
    record        TEXT    NOT NULL DEFAULT '{}',
    size          INTEGER NOT NULL DEFAULT 0,
    content_hash  TEXT    NOT NULL DEFAULT '',
    signature     TEXT    NOT NULL,
    marker        TEXT    NOT NULL DEFAULT '',
    embedder      TEXT,
    installed_at  INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (root, folder)
);
CREATE UNIQUE INDEX skills_live ON skills (name) WHERE state = 'live';
CREATE INDEX skills_by_name ON skills (name);

CREATE TABLE skill_tags (
    tag     TEXT    NOT NULL,
    derived INTEGER NOT NULL,
    root    TEXT    NOT NULL,
    folder  TEXT    NOT NULL,
    PRIMARY KEY (tag, derived, root, folder),
    FOREIGN KEY (root, folder) REFERENCES skills (root, folder) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX skill_tags_by_folder ON skill_tags (root, folder);

-- When each name was installed for the first time; a reinstall changes nothing here.
CREATE TABLE first_installs (
    name         TEXT    PRIMARY KEY,
    installed_at INTEGER NOT NULL
) WITHOUT ROWID;

-- How often each tool was called and how it went.
CREATE TABLE call_statistics (
    tool           TEXT    PRIMARY KEY,
    call_count     INTEGER NOT NULL,
    success_count  INTEGER NOT NULL,
    total_duration INTEGER NOT NULL
) WITHOUT ROWID;
