-- A path of a webhook is unique within its org: a deploy must not tell whether another org has it. The signature says
-- which of the orgs with the same path a delivery is for.
ALTER TABLE webhooks DROP CONSTRAINT webhooks_pkey, ADD PRIMARY KEY (path, org_id);

-- Of many orgs with the same path the oldest are asked first.
ALTER TABLE webhooks ADD COLUMN taken_at timestamptz NOT NULL DEFAULT trace_now();
