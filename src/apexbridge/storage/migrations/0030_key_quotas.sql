-- Limits of one key, where they differ from those of all keys.
ALTER TABLE api_keys ADD COLUMN quota_mb INTEGER;
ALTER TABLE api_keys ADD COLUMN max_runs INTEGER;
ALTER TABLE api_keys ADD COLUMN rate_limit INTEGER;

-- The size of each record, so that those of a key can be limited.
ALTER TABLE chats ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE chats SET bytes = 512 + length(trajectory) + coalesce(length(messages), 0) + coalesce(length(answer), 0);
DROP INDEX chats_by_caller;
CREATE INDEX chats_by_caller ON chats (caller, started_at DESC, bytes);
