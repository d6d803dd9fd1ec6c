-- Batches are remembered for a while and no longer: those that came first are found by their age.
CREATE INDEX buffer_commits_by_age ON buffer_commits (committed_at);

-- The definition whose indexes were made, as far as rows let them be.
ALTER TABLE buffer_tables ADD COLUMN indexed text;
