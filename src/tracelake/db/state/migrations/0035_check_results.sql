-- What came of the checks of each attempt: written with its final report. Rows expire by their age
-- (check_retention_days), and outlive their task if that is deleted first.
CREATE TABLE check_results (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    output_index integer NOT NULL,
    name text NOT NULL,
    org_id uuid NOT NULL REFERENCES orgs,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    unit text,
    kind text NOT NULL,
    severity text NOT NULL CHECK (severity IN ('error', 'warn')),
    passed boolean NOT NULL,
    rows bigint,
    offending_rows bigint,
    message text NOT NULL,
    sample json NOT NULL,
    checked_at timestamptz NOT NULL DEFAULT trace_now(),
    PRIMARY KEY (task_id, attempt, output_index, name)
);
CREATE INDEX check_results_by_dataset ON check_results (dataset_uuid, checked_at DESC);
CREATE INDEX check_results_by_name ON check_results (dataset_uuid, name, checked_at DESC);
CREATE INDEX check_results_by_age ON check_results (checked_at, task_id, attempt, output_index, name);
