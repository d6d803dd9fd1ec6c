-- Whose a row is. Whoever takes rows takes them fairly over orgs, so each index leads from one org to the next with one
-- probe, however many rows an org has; within an org rows have their turn by time as before.
ALTER TABLE outbox ADD COLUMN org_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';

DROP INDEX outbox_wakeups;
DROP INDEX outbox_batches;
DROP INDEX outbox_invoke;
CREATE INDEX outbox_wakeups ON outbox (org_id, next_try_at, outbox_id) WHERE kind = 'task_wakeup' AND status = 'Pending';
CREATE INDEX outbox_batches ON outbox (org_id, next_try_at, outbox_id) WHERE kind = 'buffer_batch' AND status = 'Pending';
CREATE INDEX outbox_invoke ON outbox (queue, org_id, next_try_at, outbox_id)
    WHERE kind = 'task_invoke' AND status = 'Pending';
