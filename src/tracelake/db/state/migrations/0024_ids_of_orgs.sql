-- People see numbers that sequences of all orgs gave out as another number, by a permutation of their org's. The orgs'
-- keys are derived from this secret (dispatcher/public_ids.py). It never changes: ids that were shown stay what they are.
CREATE TABLE public_id_secret (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secret   bytea NOT NULL CHECK (length(secret) = 32)
);
INSERT INTO public_id_secret (secret)
VALUES (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- The id of an invalidation is a revision that people see. It is chosen at random when its event is stored; where there
-- is none, the event is older than this column and its invalidation is named by event_id.
ALTER TABLE events ADD COLUMN invalidation_id text;
ALTER TABLE invalidations ADD COLUMN event_id bigint;
UPDATE invalidations SET event_id = invalidation_id::bigint;
