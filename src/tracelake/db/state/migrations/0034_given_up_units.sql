-- Units that people gave up: readers of a dataset see them as gaps. They are few.
CREATE INDEX tasks_given_up ON tasks (node_id, unit_start)
    WHERE unit_key IS NOT NULL AND (skipped_at IS NOT NULL OR status = 'Canceled');
