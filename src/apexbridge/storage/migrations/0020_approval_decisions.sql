-- Who decided an approval, and when. The calls get a table of their own: they can be large, and lists do not show them.
ALTER TABLE approvals ADD COLUMN decided_at INTEGER;
ALTER TABLE approvals ADD COLUMN decided_by TEXT;
CREATE TABLE approval_calls (
    approval     TEXT    PRIMARY KEY REFERENCES approvals (id) ON DELETE CASCADE,
    size         INTEGER NOT NULL,
    is_truncated INTEGER NOT NULL,
    call         TEXT    NOT NULL
);
INSERT INTO approval_calls SELECT id, length(call), instr(call, ' hidden, sha256 ') > 0, call FROM approvals WHERE call <> '';
ALTER TABLE approvals DROP COLUMN call;
CREATE INDEX approvals_by_state ON approvals (state, created_at);
