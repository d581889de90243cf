-- The end of the audit log in audit.sqlite3, and acts that were announced and may not be in it yet. The table before
-- was about audit.jsonl, which is no longer written.
DROP TABLE audit_head;
CREATE TABLE audit_head (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    count   INTEGER NOT NULL,
    hash    TEXT    NOT NULL,
    pending TEXT    NOT NULL
);
