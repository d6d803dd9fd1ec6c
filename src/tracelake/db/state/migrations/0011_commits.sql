-- The batches that came into a table with one commit.
CREATE INDEX buffer_publishes_by_commit ON buffer_publishes (dataset_uuid, commit_seq, publish_seq)
    WHERE commit_seq IS NOT NULL;
