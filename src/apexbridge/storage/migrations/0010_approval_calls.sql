-- The whole call, until it is decided, and which admission used an approval.
ALTER TABLE approvals ADD COLUMN call TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN admission TEXT;
CREATE INDEX approvals_waiting ON approvals (caller, created_at) WHERE state = 'waiting';
