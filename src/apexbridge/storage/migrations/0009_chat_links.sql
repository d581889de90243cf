-- Connects a record with what past use keeps of the request, so that both are deleted together.
ALTER TABLE chats ADD COLUMN link TEXT NOT NULL DEFAULT '';
