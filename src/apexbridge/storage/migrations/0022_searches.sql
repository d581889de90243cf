-- Texts that were searched for, unless the operator switched that off, and how many results the last search had.
CREATE TABLE searches (
    query   TEXT    PRIMARY KEY,
    count   INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    results INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX searches_by_time ON searches (last_at);
