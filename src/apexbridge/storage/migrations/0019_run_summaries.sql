-- What lists of runs show of a result, and what started the run: api, tool, chat or mcp, and the id of the chat or
-- conversation. Null for runs of earlier versions.
ALTER TABLE runs ADD COLUMN origin TEXT;
ALTER TABLE runs ADD COLUMN origin_id TEXT;
ALTER TABLE runs ADD COLUMN duration_ms INTEGER;
ALTER TABLE runs ADD COLUMN error_code TEXT;
ALTER TABLE runs ADD COLUMN exit_code INTEGER;
ALTER TABLE runs ADD COLUMN file_count INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET
    duration_ms = json_extract(result, '$.duration'),
    error_code = json_extract(result, '$.errorCode'),
    exit_code = json_extract(result, '$.exitCode'),
    file_count = coalesce(json_array_length(result, '$.files'), 0)
WHERE json_valid(result);
