--- dataset of another org | query_unknown_relation
SELECT * FROM org_b_transfers

--- dataset of another org with its name | query_unknown_relation
SELECT * FROM org_b.transfers

--- dataset of another org in quotes | query_unknown_relation
SELECT * FROM "org_b/transfers"

--- dataset by its id | query_unknown_relation
SELECT * FROM "01890a5d-ac96-774b-bcce-b302099a8057"

--- dataset with a generation | query_unknown_relation
SELECT * FROM "transfers@3"

--- dataset with a version | query_unknown_relation
SELECT * FROM transfers_v2

--- dataset with a generation behind a dot | query_unknown_relation
SELECT * FROM transfers.g3

--- generation by AT | query_not_allowed
SELECT * FROM transfers AT (VERSION => 3)

--- generation by FOR SYSTEM_TIME | query_syntax
SELECT * FROM transfers FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01'

--- generation by a WITH of the same name | query_unknown_relation
WITH transfers AS (SELECT * FROM transfers_g2) SELECT * FROM transfers

--- files of another generation | query_not_allowed
SELECT * FROM read_parquet('/cache/sha256/*')

--- dataset that is not granted in a join | query_unknown_relation
SELECT * FROM transfers t JOIN balances b ON b.token = t.token

--- dataset that is not granted in a subquery | query_unknown_relation
SELECT * FROM transfers WHERE token IN (SELECT token FROM watchlist)

--- dataset that is not granted in a lateral | query_unknown_relation
SELECT * FROM transfers t, LATERAL (SELECT * FROM watchlist w WHERE w.token = t.token)

--- dataset that is not granted in EXISTS | query_unknown_relation
SELECT * FROM transfers t WHERE EXISTS (SELECT 1 FROM watchlist w WHERE w.token = t.token)

--- dataset that is not granted in a CTE that is not used | query_unknown_relation
WITH w AS (SELECT * FROM watchlist) SELECT count(*) FROM transfers

--- dataset that is not granted behind UNION | query_unknown_relation
SELECT token FROM transfers UNION SELECT token FROM watchlist

--- dataset that is not granted behind EXCEPT | query_unknown_relation
SELECT token FROM transfers EXCEPT SELECT token FROM watchlist

--- dataset that is not granted in ORDER BY | query_unknown_relation
SELECT token FROM transfers ORDER BY (SELECT max(token) FROM watchlist)

--- dataset that is not granted in an aggregate | query_unknown_relation
SELECT max((SELECT token FROM watchlist LIMIT 1)) FROM transfers

--- dataset that is not granted in a window | query_unknown_relation
SELECT sum(log_index) OVER (PARTITION BY (SELECT token FROM watchlist LIMIT 1)) FROM transfers

--- dataset that is not granted in ARRAY | query_unknown_relation
SELECT ARRAY(SELECT token FROM watchlist)

--- dataset that is not granted in ANY | query_unknown_relation
SELECT * FROM transfers WHERE token = ANY (SELECT token FROM watchlist)

--- dataset that is not granted in ALL | query_unknown_relation
SELECT * FROM transfers WHERE token > ALL (SELECT token FROM watchlist)

--- dataset that is not granted in a comprehension | query_unknown_relation
SELECT [(SELECT max(token) FROM watchlist) FOR x IN [1, 2]]

--- dataset that is not granted in COLUMNS | query_unknown_relation
SELECT COLUMNS(lambda c: c IN (SELECT token FROM watchlist)) FROM transfers

--- tables of Trace | query_unknown_relation
SELECT * FROM tasks

--- tables of Trace with a schema | query_unknown_relation
SELECT * FROM state.tasks

--- Postgres roles | query_unknown_relation
SELECT * FROM pg_roles

--- Postgres shadow | query_unknown_relation
SELECT * FROM pg_shadow

--- column org_id | query_unknown_column
SELECT org_id FROM transfers

--- column of the writer | query_unknown_column
SELECT _task_id FROM transfers

--- column of the commit | query_unknown_column
SELECT _commit_seq FROM transfers

--- Postgres system column | query_unknown_column
SELECT ctid FROM transfers

--- Postgres xmin | query_unknown_column
SELECT xmin FROM transfers
