-- What an org may use, where the platform's operator has said so; NULL is the setting's default, 0 is no limit.
CREATE TABLE org_quotas (
    org_id              uuid PRIMARY KEY REFERENCES orgs,
    weight              double precision CHECK (weight > 0 AND weight <= 1000),
    queued_tasks        bigint CHECK (queued_tasks >= 0),
    running_tasks       bigint CHECK (running_tasks BETWEEN 0 AND 1000000),
    units_per_range     bigint CHECK (units_per_range >= 0),
    stored_bytes        bigint CHECK (stored_bytes >= 0),
    deploys_per_hour    bigint CHECK (deploys_per_hour >= 0),
    dry_runs_per_minute bigint CHECK (dry_runs_per_minute >= 0),
    changed_at          timestamptz NOT NULL DEFAULT trace_now()
);

-- Who waits for a limit that orgs share gets its place in turn: the virtual clocks of the orgs (model/fair_share.py).
ALTER TABLE limits ADD COLUMN shares json;
DROP INDEX tasks_held;
CREATE INDEX tasks_held ON tasks (held_by, org_id, ready_at, task_id) WHERE held;

-- To count what each org has queued along this index and the one above, without a look at the rows.
DROP INDEX tasks_ready;
CREATE INDEX tasks_ready ON tasks (ready_at, task_id) INCLUDE (org_id) WHERE status = 'Queued' AND NOT held;

-- Bytes of files that commits have pinned. Each change is a row of its own, so that commits do not wait for each other;
-- a loop adds them up.
CREATE TABLE stored_bytes (
    org_id uuid PRIMARY KEY REFERENCES orgs,
    bytes  bigint NOT NULL
);
CREATE TABLE stored_bytes_changes (
    change_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id    uuid NOT NULL,
    bytes     bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);

CREATE FUNCTION manifest_bytes(objects json) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(sum((o ->> 'size')::bigint), 0)::bigint FROM json_array_elements(objects) AS o $$;

CREATE FUNCTION count_stored_bytes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes_changes (org_id, bytes)
    SELECT d.org_id, sum(manifest_bytes(m.objects)) * CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END
    FROM moved m JOIN datasets d USING (dataset_uuid)
    GROUP BY d.org_id HAVING sum(manifest_bytes(m.objects)) <> 0;
    RETURN NULL;
END $$;

CREATE TRIGGER manifests_added AFTER INSERT ON manifests
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION count_stored_bytes();
CREATE TRIGGER manifests_removed AFTER DELETE ON manifests
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION count_stored_bytes();

INSERT INTO stored_bytes (org_id, bytes)
SELECT d.org_id, sum(manifest_bytes(m.objects)) FROM manifests m JOIN datasets d USING (dataset_uuid) GROUP BY d.org_id;
