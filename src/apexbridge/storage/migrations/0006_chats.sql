-- Every chat request that a model was asked for: how it went, step by step. Texts only where the operator says so.
-- What can be long stands last, so that lists and sums need not read it.
CREATE TABLE chats (
    id                TEXT    NOT NULL PRIMARY KEY,
    caller            TEXT    NOT NULL,
    model             TEXT    NOT NULL,
    upstream          TEXT    NOT NULL,
    started_at        INTEGER NOT NULL,
    duration_ms       INTEGER NOT NULL,
    is_stream         INTEGER NOT NULL,
    turns             INTEGER NOT NULL,
    calls             INTEGER NOT NULL,
    stop_cause        TEXT    NOT NULL,
    outcome           TEXT    NOT NULL CHECK (outcome IN ('answered', 'failed', 'cancelled')),
    error_code        TEXT,
    error_message     TEXT,
    prompt_tokens     INTEGER,
    completion_tokens INTEGER,
    total_tokens      INTEGER,
    trajectory        TEXT    NOT NULL,
    messages          TEXT,
    answer            TEXT
);
CREATE INDEX chats_by_time ON chats (started_at DESC, id);
CREATE INDEX chats_by_model ON chats (model, started_at DESC);
CREATE INDEX chats_by_caller ON chats (caller, started_at DESC);
CREATE INDEX chats_by_stop_cause ON chats (stop_cause, started_at DESC);
CREATE INDEX chats_by_outcome ON chats (outcome, started_at DESC);
