-- Whose run it is: the id of an API key, or nothing for whoever came without one.
ALTER TABLE runs ADD COLUMN caller TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_by_caller ON runs (caller, created_at DESC);
