-- Questions that were put to a person before a dangerous call, and the answers.
CREATE TABLE approvals (
    id           TEXT    PRIMARY KEY,
    tool         TEXT    NOT NULL,
    confirm      TEXT    NOT NULL,
    summary      TEXT    NOT NULL,
    content_hash TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    caller       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('waiting', 'approved', 'denied', 'used'))
) WITHOUT ROWID;
CREATE INDEX approvals_by_digest ON approvals (digest);
CREATE INDEX approvals_by_time ON approvals (created_at);
