-- Nodes whose outputs were made, in part, from a generation that is no longer current: another DAG rebuilt what they read.
-- The row goes when a rebuild has made all of their units again; `rebuild` has the invalidations that ask for it.
CREATE TABLE stale_outputs (
    node_id      uuid PRIMARY KEY REFERENCES nodes,
    org_id       uuid NOT NULL REFERENCES orgs,
    dataset_uuid uuid NOT NULL REFERENCES datasets,
    since        timestamptz NOT NULL DEFAULT trace_now(),
    rebuild      text[] NOT NULL DEFAULT '{}'
);
CREATE INDEX stale_outputs_by_org ON stale_outputs (org_id);
