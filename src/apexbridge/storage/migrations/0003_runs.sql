-- Every run that began: when, what came of it, and what held it. The input itself only where the operator says so.
CREATE TABLE runs (
    id           TEXT    PRIMARY KEY,
    skill        TEXT    NOT NULL,
    script       TEXT    NOT NULL,
    content_hash TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('pending', 'running', 'completed', 'error')),
    status       TEXT,
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER,
    input_digest TEXT    NOT NULL,
    input        TEXT,
    result       TEXT
) WITHOUT ROWID;
CREATE INDEX runs_by_time ON runs (created_at DESC, id);
CREATE INDEX runs_by_skill ON runs (skill, created_at DESC);

-- What an operator has allowed one skill, as it was at that moment.
CREATE TABLE grants (
    skill        TEXT    NOT NULL,
    permission   TEXT    NOT NULL,
    content_hash TEXT    NOT NULL,
    granted_at   INTEGER NOT NULL,
    PRIMARY KEY (skill, permission)
) WITHOUT ROWID;
