"""Every statement the queue adapter runs. Time is `trace_now()` in all of them.

A message is *due* when its visible_at has passed, and *held* by a receipt while it has not.
"""

CHANNEL = "trace_queue"

# One row per message and one NOTIFY for all of them, in one statement and so in one transaction.
PUBLISH = f"""
WITH stored AS (
    INSERT INTO messages (queue, key, body, published_at, visible_at)
    SELECT m.queue, m.key, m.body, trace_now(), trace_now()
      FROM unnest($1::text[], $2::text[], $3::bytea[]) AS m (queue, key, body)
)
SELECT pg_notify('{CHANNEL}', $4)
"""  # noqa: S608 - the channel is a constant

# The subselect locks rows in the order of the index and skips what others hold. Its ctids stay true: a locked
# row cannot move before we commit, and one that moved before we locked it is left for the next receive.
TAKE_DUE = """
UPDATE messages
   SET visible_at = trace_now() + make_interval(secs => $3), receives = receives + 1, receipt = $4
 WHERE ctid = ANY (ARRAY(
           SELECT ctid FROM messages
            WHERE queue = $1 AND visible_at <= trace_now()
            ORDER BY visible_at
            LIMIT $2
              FOR UPDATE SKIP LOCKED))
RETURNING message_id, key, body, receives
"""

NEXT_DUE = """
SELECT extract(epoch FROM visible_at - trace_now())::float8
  FROM messages WHERE queue = $1 ORDER BY visible_at LIMIT 1
"""

DELETE_IF_HELD = """
DELETE FROM messages m
 USING unnest($1::text[], $2::bigint[], $3::bigint[]) AS d (key, message_id, receipt)
 WHERE m.key = d.key AND m.message_id = d.message_id AND m.receipt = d.receipt
   AND m.visible_at > trace_now()
RETURNING m.message_id
"""

HIDE_IF_HELD = """
UPDATE messages m SET visible_at = trace_now() + make_interval(secs => d.seconds)
  FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::float8[]) AS d (key, message_id, receipt, seconds)
 WHERE m.key = d.key AND m.message_id = d.message_id AND m.receipt = d.receipt
   AND m.visible_at > trace_now()
RETURNING m.message_id
"""

# A receive that nobody got: undone, not counted.
GIVE_BACK_IF_HELD = """
UPDATE messages m SET visible_at = trace_now(), receives = m.receives - 1, receipt = NULL
  FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS d (key, message_id, receipt)
 WHERE m.key = d.key AND m.message_id = d.message_id AND m.receipt = d.receipt
   AND m.visible_at > trace_now()
RETURNING m.message_id
"""

# `receives - 1`: the receive that found it exhausted delivered it to nobody.
BURY_IF_HELD = """
WITH gone AS (
    DELETE FROM messages m
     USING unnest($1::text[], $2::bigint[], $3::bigint[]) AS d (key, message_id, receipt)
     WHERE m.key = d.key AND m.message_id = d.message_id AND m.receipt = d.receipt
    RETURNING m.message_id, m.queue, m.key, m.body, m.published_at, m.receives
)
INSERT INTO dead_letters (message_id, queue, key, body, published_at, receives, died_at, reason)
SELECT message_id, queue, key, body, published_at, greatest(receives - 1, 1), trace_now(), $4 FROM gone
RETURNING message_id
"""

ABSENT = """
SELECT wanted.key FROM unnest($2::text[]) AS wanted (key)
 WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.key = wanted.key AND m.queue = $1)
"""

MOST_COUNTED = 100_000
"""Of each queue and state: what is beyond is not counted, so that counting a flood holds nobody up."""

# From one queue to the next along the index; of each, no more than that many entries are looked at.
DEPTHS = f"""
WITH RECURSIVE names AS (
    (SELECT min(queue) AS queue FROM messages)
    UNION ALL
    SELECT (SELECT min(m.queue) FROM messages m WHERE m.queue > names.queue) FROM names WHERE names.queue IS NOT NULL
), dead_names AS (
    (SELECT min(queue) AS queue FROM dead_letters)
    UNION ALL
    SELECT (SELECT min(d.queue) FROM dead_letters d WHERE d.queue > dead_names.queue)
      FROM dead_names WHERE dead_names.queue IS NOT NULL
), every AS (
    SELECT queue FROM names WHERE queue IS NOT NULL UNION SELECT queue FROM dead_names WHERE queue IS NOT NULL
)
SELECT queue,
       (SELECT count(*) FROM (SELECT FROM messages m WHERE m.queue = every.queue AND m.visible_at <= trace_now()
                              LIMIT {MOST_COUNTED}) x) AS ready,
       (SELECT count(*) FROM (SELECT FROM messages m WHERE m.queue = every.queue AND m.visible_at > trace_now()
                              LIMIT {MOST_COUNTED}) x) AS in_flight,
       (SELECT count(*) FROM (SELECT FROM dead_letters d WHERE d.queue = every.queue LIMIT {MOST_COUNTED}) x) AS dead,
       greatest(coalesce(extract(epoch FROM trace_now() - (
           SELECT min(m.visible_at) FROM messages m WHERE m.queue = every.queue)), 0)::float8, 0) AS oldest
  FROM every ORDER BY queue
"""  # noqa: S608 - constants only

LIST_DEAD = """
SELECT message_id, queue, key, body, published_at, receives, died_at, reason
  FROM dead_letters WHERE queue = $1 ORDER BY message_id DESC LIMIT $2
"""

LIST_ALL_DEAD = """
SELECT message_id, queue, key, body, published_at, receives, died_at, reason
  FROM dead_letters ORDER BY message_id DESC LIMIT $1
"""

DROP_DEAD = """
WITH gone AS (DELETE FROM dead_letters WHERE message_id = ANY ($1::bigint[]) RETURNING message_id)
SELECT count(*)::int AS dropped FROM gone
"""

DROP_ALL_DEAD = """
WITH gone AS (DELETE FROM dead_letters RETURNING message_id)
SELECT count(*)::int AS dropped FROM gone
"""

# A redriven message is a new one: old receipts mean nothing to it and its receives start again.
REDRIVE = """
WITH raised AS (
    DELETE FROM dead_letters WHERE message_id = ANY ($1::bigint[]) RETURNING queue, key, body, published_at
), stored AS (
    INSERT INTO messages (queue, key, body, published_at, visible_at)
    SELECT queue, key, body, published_at, trace_now() FROM raised
)
SELECT queue, count(*) AS messages FROM raised GROUP BY queue
"""

RING = f"SELECT pg_notify('{CHANNEL}', $1)"
