-- Calls of each skill by day (days since 1970, UTC) and by class of duration, from which percentiles are computed.
CREATE TABLE skill_call_days (
    day     INTEGER NOT NULL,
    skill   TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,
    calls   INTEGER NOT NULL,
    failed  INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (day, skill, bucket)
) WITHOUT ROWID;
CREATE INDEX skill_call_days_by_skill ON skill_call_days (skill, day);
