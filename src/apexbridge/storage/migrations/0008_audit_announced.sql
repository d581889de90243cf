-- Lines of the audit log that were announced and may not have been written yet: a crash in between is no forgery.
ALTER TABLE audit_head ADD COLUMN announced BLOB NOT NULL DEFAULT x'';
