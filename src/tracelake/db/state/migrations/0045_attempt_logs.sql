-- Logs of attempts that workers ran, beside those of users' functions. A small log is in its row, a large one in the object
-- store. `line_end` and `ended` order the reports of one attempt: an older one never replaces a newer one.
ALTER TABLE run_logs
    ALTER COLUMN bundle_id DROP NOT NULL,
    ADD COLUMN worker_id text,
    ADD COLUMN body      bytea,
    ADD COLUMN in_store  boolean NOT NULL DEFAULT true,
    ADD COLUMN line_end  bigint NOT NULL DEFAULT 0,
    ADD COLUMN ended     boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT run_logs_of_one_kind CHECK ((bundle_id IS NULL) <> (worker_id IS NULL)),
    ADD CONSTRAINT run_logs_body_of_worker CHECK (body IS NULL OR worker_id IS NOT NULL);
DROP INDEX run_logs_of_bundle;
CREATE INDEX run_logs_of_bundle ON run_logs (org_id, bundle_id, started_at DESC) WHERE bundle_id IS NOT NULL;
