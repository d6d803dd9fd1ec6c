-- Logs of runs: a row for each attempt of a user's function that was given addresses for its log. The log itself is in
-- the object store. A row is written before the address exists and goes after the object, so that no object is left
-- behind; it refers to no task, because a task may go before the log's own time has come.
CREATE TABLE run_logs (
    task_id        uuid NOT NULL,
    attempt        integer NOT NULL CHECK (attempt > 0),
    org_id         uuid NOT NULL REFERENCES orgs,
    job_id         uuid NOT NULL,
    bundle_id      uuid NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT trace_now(),
    writable_until timestamptz NOT NULL,
    invoked        boolean NOT NULL DEFAULT true,
    PRIMARY KEY (task_id, attempt)
);
CREATE INDEX run_logs_by_age ON run_logs (writable_until, task_id, attempt);
CREATE INDEX run_logs_of_bundle ON run_logs (org_id, bundle_id, started_at DESC);
CREATE INDEX run_logs_of_job ON run_logs (job_id, started_at DESC);
