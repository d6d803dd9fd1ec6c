-- Tokens of users that admins made. The token itself is nowhere kept; its claim `jti` is the id of its row. Orgs by name,
-- as tokens name them.
CREATE TABLE user_tokens (
    org        text NOT NULL CHECK (org ~ '^[a-z][a-z0-9_]{0,127}$'),
    token_id   uuid NOT NULL,
    subject    text NOT NULL,
    role       text NOT NULL CHECK (role IN ('reader', 'writer', 'admin')),
    dags       text[] CHECK (dags IS NULL OR (cardinality(dags) > 0 AND role <> 'admin')),
    read_dags  text[] CHECK (read_dags IS NULL OR (cardinality(read_dags) > 0 AND dags IS NOT NULL)),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT trace_now(),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    revoked_by text,
    PRIMARY KEY (org, token_id),
    CONSTRAINT expires_later   CHECK (expires_at > created_at),
    CONSTRAINT revoked_by_whom CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE INDEX user_tokens_by_expiry ON user_tokens (expires_at);

-- What listeners refuse: one token by its `jti`, also one without a row above, or every token of a subject that was issued
-- until then. A row may be deleted once the token has expired; without `expires_at` it stays.
CREATE TABLE token_revocations (
    org          text NOT NULL CHECK (org ~ '^[a-z][a-z0-9_]{0,127}$'),
    kind         text NOT NULL CHECK (kind IN ('token', 'subject')),
    value        text NOT NULL,
    issued_until timestamptz NOT NULL,
    revoked_by   text NOT NULL,
    expires_at   timestamptz,
    PRIMARY KEY (org, kind, value)
);
