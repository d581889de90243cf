-- Who may talk to the server. Of a key's secret only the digest is kept.
CREATE TABLE api_keys (
    id           TEXT    PRIMARY KEY,
    name         TEXT    NOT NULL,
    digest       BLOB    NOT NULL,
    scopes       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) WITHOUT ROWID;

-- Where the audit log ends, so that lines missing at its end are noticed.
CREATE TABLE audit_head (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    count INTEGER NOT NULL,
    hash  TEXT    NOT NULL,
    size  INTEGER NOT NULL
);
