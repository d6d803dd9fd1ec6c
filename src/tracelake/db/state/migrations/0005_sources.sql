-- So many of the attempts do not count for the wait before the next one: those up to the last healthy one of a task
-- whose attempts have no end, and those whose worker was told to stop.
-- NOT VALID: true of every row by the default, so that nobody has to look at them while the table is locked.
ALTER TABLE tasks ADD COLUMN forgiven integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT forgiven_were_tried CHECK (forgiven >= 0 AND forgiven <= attempt) NOT VALID;

-- Deliveries are forgotten by their age.
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (received_at, node_id, delivery_id);
