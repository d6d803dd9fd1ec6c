-- Bundles of users' code. A row is an upload until it is finalized; from then on everything but its status is fixed.
-- The archive of a ready bundle is at an address made of its org and its hash, where only the platform writes.
CREATE TABLE udf_bundles (
    bundle_id         uuid PRIMARY KEY,
    org_id            uuid NOT NULL REFERENCES orgs,
    status            text NOT NULL DEFAULT 'uploading'
                      CHECK (status IN ('uploading', 'ready', 'rejected', 'disabled')),
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT trace_now(),
    size_bytes        bigint NOT NULL CHECK (size_bytes > 0),
    upload_expires_at timestamptz NOT NULL,
    staged            boolean NOT NULL DEFAULT true,
    sha256            text CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    language          text CHECK (language IN ('python', 'node', 'rust')),
    entrypoint        text,
    entry_count       int CHECK (entry_count > 0),
    expanded_bytes    bigint CHECK (expanded_bytes >= 0),
    notices           json NOT NULL DEFAULT '[]',
    finalized_at      timestamptz,
    reason_code       text,
    reason            text,
    disabled_at       timestamptz,
    disabled_by       text,
    CHECK ((status IN ('ready', 'disabled')) = (entry_count IS NOT NULL)),
    CHECK (status NOT IN ('ready', 'disabled')
           OR (sha256 IS NOT NULL AND language IS NOT NULL AND finalized_at IS NOT NULL
               AND (entrypoint IS NULL) = (language = 'rust'))),
    CHECK ((status = 'rejected') = (reason_code IS NOT NULL)),
    CHECK ((status = 'disabled') = (disabled_at IS NOT NULL))
);
CREATE INDEX udf_bundles_of_org ON udf_bundles (org_id, bundle_id);
-- Uploads whose bytes are still to be removed from where they were sent.
CREATE INDEX udf_bundles_staged ON udf_bundles (upload_expires_at) WHERE staged;
