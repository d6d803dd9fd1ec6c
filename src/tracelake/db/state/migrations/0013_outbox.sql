-- Whoever takes rows of one kind passes no row of another, none that was given up, and none whose time has not come: each
-- has an index of exactly the rows it may take, in the order of their turn. A backlog of one kind costs the others nothing.
DROP INDEX outbox_invoke;
CREATE INDEX outbox_wakeups ON outbox (next_try_at, outbox_id) WHERE kind = 'task_wakeup' AND status = 'Pending';
CREATE INDEX outbox_batches ON outbox (next_try_at, outbox_id) WHERE kind = 'buffer_batch' AND status = 'Pending';
CREATE INDEX outbox_invoke ON outbox (queue, next_try_at, outbox_id) WHERE kind = 'task_invoke' AND status = 'Pending';
CREATE INDEX outbox_failed ON outbox (outbox_id) WHERE status = 'Failed';

-- Whether a task or a batch has a row already.
CREATE INDEX outbox_by_key ON outbox (key);
