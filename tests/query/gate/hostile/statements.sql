--- COPY to a file | query_not_allowed
COPY blocks TO '/tmp/x.csv'

--- COPY a query | query_not_allowed
COPY (SELECT * FROM blocks) TO '/tmp/x.parquet' (FORMAT parquet)

--- COPY to a URL | query_not_allowed
COPY (SELECT 1) TO 's3://attacker/x.csv'

--- COPY from a file | query_not_allowed
COPY blocks FROM '/etc/passwd'

--- COPY in mixed case | query_not_allowed
cOpY (SELECT 1) tO '/tmp/x'

--- COPY behind a comment | query_not_allowed
/* report */ COPY blocks TO '/tmp/x.csv'

--- COPY behind a line comment | query_not_allowed
-- report
COPY blocks TO '/tmp/x.csv'

--- COPY FROM DATABASE | query_not_allowed
COPY FROM DATABASE a TO b

--- EXPORT DATABASE | query_not_allowed
EXPORT DATABASE '/tmp/x'

--- IMPORT DATABASE | query_not_allowed
IMPORT DATABASE '/tmp/x'

--- ATTACH memory | query_not_allowed
ATTACH ':memory:' AS m

--- ATTACH a file | query_not_allowed
ATTACH '/tmp/other.duckdb' AS o

--- ATTACH Postgres | query_not_allowed
ATTACH 'dbname=state' AS s (TYPE postgres)

--- ATTACH OR REPLACE | query_not_allowed
ATTACH OR REPLACE ':memory:' AS m

--- ATTACH IF NOT EXISTS | query_not_allowed
attach if not exists ':memory:' as m

--- DETACH | query_not_allowed
DETACH memory

--- USE | query_not_allowed
USE other

--- INSTALL | query_not_allowed
INSTALL httpfs

--- INSTALL from community | query_not_allowed
INSTALL shellfs FROM community

--- FORCE INSTALL | query_not_allowed
FORCE INSTALL httpfs

--- LOAD | query_not_allowed
LOAD httpfs

--- LOAD a path | query_not_allowed
LOAD '/tmp/evil.duckdb_extension'

--- UPDATE EXTENSIONS | query_not_allowed
UPDATE EXTENSIONS

--- PRAGMA | query_not_allowed
PRAGMA database_list

--- PRAGMA with a value | query_not_allowed
PRAGMA threads=64

--- PRAGMA call | query_not_allowed
PRAGMA table_info('blocks')

--- PRAGMA show_tables | query_not_allowed
PRAGMA show_tables

--- PRAGMA enable_profiling | query_not_allowed
PRAGMA enable_profiling

--- PRAGMA in mixed case | query_not_allowed
pRaGmA version

--- SET | query_not_allowed
SET memory_limit = '100GB'

--- SET GLOBAL | query_not_allowed
SET GLOBAL threads = 64

--- SET SESSION | query_not_allowed
SET SESSION search_path = 'x'

--- SET lock | query_not_allowed
SET lock_configuration = false

--- SET external access | query_not_allowed
SET enable_external_access = true

--- SET VARIABLE | query_not_allowed
SET VARIABLE x = 1

--- SET VARIABLE from a query | query_not_allowed
SET VARIABLE x = (SELECT author FROM blocks LIMIT 1)

--- RESET | query_not_allowed
RESET memory_limit

--- RESET VARIABLE | query_not_allowed
RESET VARIABLE x

--- SET TIME ZONE | query_not_allowed
SET TIME ZONE 'UTC'

--- CALL | query_not_allowed
CALL pragma_version()

--- CALL checkpoint | query_not_allowed
CALL force_checkpoint()

--- CALL with a reader | query_not_allowed
CALL read_text('/etc/passwd')

--- CHECKPOINT | query_not_allowed
CHECKPOINT

--- FORCE CHECKPOINT | query_not_allowed
FORCE CHECKPOINT

--- VACUUM | query_not_allowed
VACUUM

--- ANALYZE | query_not_allowed
ANALYZE

--- CREATE TABLE | query_not_allowed
CREATE TABLE x (a INT)

--- CREATE TABLE AS | query_not_allowed
CREATE TABLE x AS SELECT * FROM blocks

--- CREATE TEMP TABLE | query_not_allowed
CREATE TEMP TABLE x AS SELECT 1

--- CREATE VIEW | query_not_allowed
CREATE VIEW v AS SELECT * FROM blocks

--- CREATE OR REPLACE VIEW | query_not_allowed
CREATE OR REPLACE VIEW blocks AS SELECT 1

--- CREATE MACRO | query_not_allowed
CREATE MACRO f(x) AS x + 1

--- CREATE TEMP MACRO | query_not_allowed
CREATE TEMP MACRO f() AS TABLE SELECT * FROM read_text('/etc/passwd')

--- CREATE FUNCTION | query_not_allowed
CREATE FUNCTION f(x) AS x

--- CREATE SEQUENCE | query_not_allowed
CREATE SEQUENCE s

--- CREATE TYPE | query_not_allowed
CREATE TYPE mood AS ENUM ('a', 'b')

--- CREATE SECRET | query_not_allowed
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')

--- CREATE PERSISTENT SECRET | query_not_allowed
CREATE PERSISTENT SECRET s (TYPE http)

--- CREATE INDEX | query_not_allowed
CREATE INDEX i ON blocks (author)

--- CREATE SCHEMA | query_not_allowed
CREATE SCHEMA s

--- DROP TABLE | query_not_allowed
DROP TABLE blocks

--- DROP VIEW | query_not_allowed
DROP VIEW blocks

--- DROP SECRET | query_not_allowed
DROP SECRET s

--- ALTER TABLE | query_not_allowed
ALTER TABLE blocks ADD COLUMN x INT

--- ALTER VIEW | query_not_allowed
ALTER VIEW blocks RENAME TO b

--- COMMENT ON | query_not_allowed
COMMENT ON TABLE blocks IS 'x'

--- INSERT | query_not_allowed
INSERT INTO blocks VALUES (1)

--- INSERT OR REPLACE | query_not_allowed
INSERT OR REPLACE INTO blocks SELECT * FROM blocks

--- UPDATE | query_not_allowed
UPDATE blocks SET author = 'x'

--- DELETE | query_not_allowed
DELETE FROM blocks

--- TRUNCATE | query_not_allowed
TRUNCATE blocks

--- MERGE | query_not_allowed
MERGE INTO blocks USING transfers ON true WHEN MATCHED THEN DELETE

--- INSERT in a CTE | query_not_allowed
WITH x AS (INSERT INTO blocks VALUES (1) RETURNING *) SELECT * FROM x

--- UPDATE in a CTE | query_not_allowed
WITH x AS (UPDATE blocks SET author = 'x' RETURNING *) SELECT * FROM x

--- DELETE in a CTE | query_not_allowed
WITH x AS (DELETE FROM blocks RETURNING *) SELECT * FROM x

--- DELETE in a nested CTE | query_not_allowed
SELECT * FROM (WITH x AS (DELETE FROM blocks RETURNING *) SELECT * FROM x)

--- BEGIN | query_not_allowed
BEGIN

--- COMMIT | query_not_allowed
COMMIT

--- ROLLBACK | query_not_allowed
ROLLBACK

--- EXPLAIN | query_not_allowed
EXPLAIN SELECT 1

--- EXPLAIN ANALYZE | query_not_allowed
EXPLAIN ANALYZE SELECT * FROM blocks

--- EXPLAIN in mixed case | query_not_allowed
eXpLaIn SELECT 1

--- two statements | query_not_allowed
SELECT 1; SELECT 2

--- second statement is COPY | query_not_allowed
SELECT 1; COPY blocks TO '/tmp/x'

--- second statement behind a comment | query_not_allowed
SELECT 1; -- done
DROP TABLE blocks

--- second statement behind empty ones | query_not_allowed
SELECT 1;;; ATTACH ':memory:' AS m

--- first statement is SET | query_not_allowed
SET threads = 1; SELECT 1

--- statement after a quote | query_not_allowed
SELECT ';'; INSTALL httpfs

--- PIVOT without IN | query_not_allowed
PIVOT blocks ON author USING sum(gas_used)

--- PIVOT_WIDER without IN | query_not_allowed
PIVOT_WIDER blocks ON author USING sum(gas_used)
