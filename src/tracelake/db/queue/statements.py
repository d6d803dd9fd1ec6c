"""Every statement the queue adapter runs. Time is `trace_now()` in all of them.

A message is *due* when its visible_at has passed, and *held* by a receipt while it has not.
"""

CHANNEL = "trace_queue"

# One row per message and one NOTIFY for all of them, in one statement and so in one transaction.
PUBLISH = f"""
WITH stored AS (
    INSERT INTO messages (queue, group_key, key, body, published_at, visible_at)
    SELECT m.queue, m.group_key, m.key, m.body, trace_now(), trace_now()
      FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) AS m (queue, group_key, key, body)
)
SELECT pg_notify('{CHANNEL}', $5)
"""  # noqa: S608 - the channel is a constant

# From one group of a queue to the next along the index, whatever lies between: one probe for each group.
_GROUPS = """
    (SELECT m.group_key FROM messages m WHERE m.queue = $1 ORDER BY m.group_key LIMIT 1)
    UNION ALL
    SELECT (SELECT m.group_key FROM messages m WHERE m.queue = $1 AND m.group_key > groups.group_key
            ORDER BY m.group_key LIMIT 1)
      FROM groups WHERE groups.group_key IS NOT NULL
"""

_DUE = """
    EXISTS (SELECT FROM messages m WHERE m.queue = $1 AND m.group_key = groups.group_key
               AND m.visible_at <= trace_now())
"""

MOST_IN_FLIGHT = 1_000
"""Of each group: with more it has its share anyway."""

# The groups that have something due, with what the order of their turns depends on.
BACKLOGS = f"""
WITH RECURSIVE groups AS ({_GROUPS})
SELECT group_key,
       (SELECT count(*) FROM (SELECT FROM messages m WHERE m.queue = $1 AND m.group_key = groups.group_key
                                 AND m.visible_at > trace_now() LIMIT {MOST_IN_FLIGHT}) x)::int AS in_flight,
       coalesce((SELECT w.weight FROM group_weights w WHERE w.group_key = groups.group_key), 1)::float8 AS weight
  FROM groups WHERE group_key IS NOT NULL AND {_DUE}
"""  # noqa: S608 - constants only

# The groups that have something due and nothing in flight, and for how long it has been due.
IDLE_BACKLOGS = f"""
WITH RECURSIVE groups AS ({_GROUPS})
SELECT group_key, coalesce((SELECT w.weight FROM group_weights w WHERE w.group_key = groups.group_key), 1)::float8
                  AS weight,
       extract(epoch FROM trace_now() - (
           SELECT m.visible_at FROM messages m WHERE m.queue = $1 AND m.group_key = groups.group_key
            ORDER BY m.visible_at LIMIT 1))::float8 AS waited
  FROM groups WHERE group_key IS NOT NULL AND {_DUE}
   AND NOT EXISTS (SELECT FROM messages m WHERE m.queue = $1 AND m.group_key = groups.group_key
                      AND m.visible_at > trace_now())
"""  # noqa: S608

# The subselects lock rows in the order of the index and skip what others hold. Their ctids stay true: a locked
# row cannot move before we commit, and one that moved before we locked it is left for the next receive.
_TAKE = """
UPDATE messages
   SET visible_at = trace_now() + make_interval(secs => $2), receives = receives + 1, receipt = $3
 WHERE ctid = ANY (ARRAY({chosen}))
RETURNING message_id, key, body, receives, group_key
"""

TAKE_ALLOTTED = _TAKE.format(
    chosen="""
       SELECT l.ctid FROM unnest($4::text[], $5::int[]) AS a (group_key, most) CROSS JOIN LATERAL (
           SELECT ctid FROM messages
            WHERE queue = $1 AND group_key = a.group_key AND visible_at <= trace_now()
            ORDER BY visible_at
            LIMIT a.most
              FOR UPDATE SKIP LOCKED) l"""
)

# Most queues have messages of one group: then there is nothing to share, and one statement does.
_TAKE_ALONE = _TAKE.format(
    chosen="""
       SELECT ctid FROM messages
        WHERE queue = $1 AND group_key = (SELECT min(group_key) FROM due HAVING count(*) = 1)
          AND visible_at <= trace_now()
        ORDER BY visible_at
        LIMIT $4
          FOR UPDATE SKIP LOCKED"""
)
TAKE_IF_ALONE = f"""
WITH RECURSIVE groups AS ({_GROUPS}),
due AS (SELECT group_key FROM groups WHERE group_key IS NOT NULL AND {_DUE} LIMIT 2) {_TAKE_ALONE}
"""  # noqa: S608 - constants only

NEXT_DUE = f"""
WITH RECURSIVE groups AS ({_GROUPS})
SELECT extract(epoch FROM min(l.visible_at) - trace_now())::float8
  FROM groups CROSS JOIN LATERAL (
      SELECT m.visible_at FROM messages m WHERE m.queue = $1 AND m.group_key = groups.group_key
       ORDER BY m.visible_at LIMIT 1) l
HAVING count(*) > 0
"""  # noqa: S608

# One statement, so that a receiver sees the old weights or the new ones.
SET_WEIGHTS = """
WITH wanted AS (SELECT * FROM unnest($1::text[], $2::float8[]) AS w (group_key, weight)),
gone AS (DELETE FROM group_weights g WHERE g.group_key <> ALL ($1::text[]))
INSERT INTO group_weights (group_key, weight) SELECT group_key, weight FROM wanted
ON CONFLICT (group_key) DO UPDATE SET weight = excluded.weight WHERE group_weights.weight <> excluded.weight
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
    RETURNING m.message_id, m.queue, m.group_key, m.key, m.body, m.published_at, m.receives
)
INSERT INTO dead_letters (message_id, queue, group_key, key, body, published_at, receives, died_at, reason)
SELECT message_id, queue, group_key, key, body, published_at, greatest(receives - 1, 1), trace_now(), $4 FROM gone
RETURNING message_id
"""

ABSENT = """
SELECT wanted.key FROM unnest($2::text[]) AS wanted (key)
 WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.key = wanted.key AND m.queue = $1)
"""

MOST_COUNTED = 100_000
"""Of each group of a queue, and state: what is beyond is not counted, so that counting a flood holds nobody up."""

# From one group of a queue to the next along the index; of each, no more than that many entries are looked at.
DEPTHS = f"""
WITH RECURSIVE groups AS (
    (SELECT queue, group_key FROM messages ORDER BY queue, group_key LIMIT 1)
    UNION ALL
    SELECT l.queue, l.group_key FROM groups CROSS JOIN LATERAL (
        SELECT m.queue, m.group_key FROM messages m
         WHERE (m.queue, m.group_key) > (groups.queue, groups.group_key)
         ORDER BY m.queue, m.group_key LIMIT 1) l
), counted AS (
    SELECT queue,
           (SELECT count(*) FROM (
               SELECT FROM messages m WHERE m.queue = groups.queue AND m.group_key = groups.group_key
                  AND m.visible_at <= trace_now() LIMIT {MOST_COUNTED}) x) AS ready,
           (SELECT count(*) FROM (
               SELECT FROM messages m WHERE m.queue = groups.queue AND m.group_key = groups.group_key
                  AND m.visible_at > trace_now() LIMIT {MOST_COUNTED}) x) AS in_flight,
           (SELECT min(m.visible_at) FROM messages m
             WHERE m.queue = groups.queue AND m.group_key = groups.group_key) AS first_visible
      FROM groups
), dead_names AS (
    (SELECT min(queue) AS queue FROM dead_letters)
    UNION ALL
    SELECT (SELECT min(d.queue) FROM dead_letters d WHERE d.queue > dead_names.queue)
      FROM dead_names WHERE dead_names.queue IS NOT NULL
), live AS (
    SELECT queue, sum(ready)::int AS ready, sum(in_flight)::int AS in_flight, min(first_visible) AS first_visible
      FROM counted GROUP BY queue
), every AS (
    SELECT queue FROM live UNION SELECT queue FROM dead_names WHERE queue IS NOT NULL
)
SELECT every.queue, coalesce(live.ready, 0) AS ready, coalesce(live.in_flight, 0) AS in_flight,
       (SELECT count(*) FROM (SELECT FROM dead_letters d WHERE d.queue = every.queue LIMIT {MOST_COUNTED}) x) AS dead,
       greatest(coalesce(extract(epoch FROM trace_now() - live.first_visible), 0)::float8, 0) AS oldest
  FROM every LEFT JOIN live USING (queue) ORDER BY every.queue
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

DISCARD = """
WITH live AS (DELETE FROM messages WHERE key = ANY ($1::text[]) RETURNING 1),
     dead AS (DELETE FROM dead_letters WHERE key = ANY ($1::text[]) RETURNING 1)
SELECT (SELECT count(*) FROM live)::int + (SELECT count(*) FROM dead)::int AS discarded
"""

DISCARD_QUEUE = """
WITH live AS (DELETE FROM messages WHERE ctid = ANY (ARRAY(
                  SELECT ctid FROM messages WHERE queue = $1 LIMIT $2)) RETURNING 1),
     dead AS (DELETE FROM dead_letters WHERE message_id = ANY (ARRAY(
                  SELECT message_id FROM dead_letters WHERE queue = $1 LIMIT $2)) RETURNING 1)
SELECT (SELECT count(*) FROM live)::int + (SELECT count(*) FROM dead)::int AS discarded
"""

# A redriven message is a new one: old receipts mean nothing to it and its receives start again.
REDRIVE = """
WITH raised AS (
    DELETE FROM dead_letters WHERE message_id = ANY ($1::bigint[]) RETURNING queue, group_key, key, body, published_at
), stored AS (
    INSERT INTO messages (queue, group_key, key, body, published_at, visible_at)
    SELECT queue, group_key, key, body, published_at, trace_now() FROM raised
)
SELECT queue, count(*) AS messages FROM raised GROUP BY queue
"""

RING = f"SELECT pg_notify('{CHANNEL}', $1)"
