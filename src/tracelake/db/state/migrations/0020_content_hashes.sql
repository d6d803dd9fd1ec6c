-- The SHA-256 of a batch, as its producer computed it: sinks check it when they read the batch. Files of units have theirs
-- in `manifests.objects`. Null for what was published without.
ALTER TABLE buffer_publishes ADD COLUMN sha256 text CHECK (sha256 ~ '^[0-9a-f]{64}$');
