-- Responses that clients continue by their ids.
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    caller TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    previous TEXT,
    workspace TEXT,
    bytes INTEGER NOT NULL,
    response BLOB NOT NULL,
    input BLOB NOT NULL,
    output BLOB NOT NULL
);
CREATE INDEX responses_by_caller ON responses (caller, used_at, bytes);
