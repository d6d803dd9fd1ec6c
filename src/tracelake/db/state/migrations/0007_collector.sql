-- How far the collector of files that were never committed has come, in the order of task ids, and which tasks it met
-- too early.
CREATE TABLE collector (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    position uuid NOT NULL
);
INSERT INTO collector (position) VALUES ('00000000-0000-0000-0000-000000000000');

CREATE TABLE collect_later (
    task_id uuid PRIMARY KEY REFERENCES tasks,
    look_at timestamptz NOT NULL
);
CREATE INDEX collect_later_due ON collect_later (look_at);

CREATE INDEX manifests_by_task ON manifests (task_id);
