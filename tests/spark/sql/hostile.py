"""Queries that must not pass, with the code that they are refused with. Inputs are `transfers` and `blocks`."""

# ruff: noqa: RUF001 - letters that look like others are the point

_STATEMENTS = """
INSERT INTO transfers VALUES (1)
INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet SELECT * FROM transfers
CREATE TABLE x AS SELECT 1
CREATE TEMPORARY VIEW x AS SELECT 1
CREATE OR REPLACE TEMPORARY FUNCTION f AS 'evil.Class' USING JAR '/tmp/x.jar'
CREATE FUNCTION f() RETURNS INT RETURN 1
CREATE TEMPORARY VARIABLE v = 1
DECLARE v = 1
DROP TABLE transfers
TRUNCATE TABLE transfers
ALTER TABLE transfers ADD COLUMN x INT
UPDATE transfers SET amount = 0
DELETE FROM transfers
MERGE INTO transfers USING blocks ON TRUE WHEN MATCHED THEN DELETE
SET spark.sql.ansi.enabled = false
SET
RESET
ADD JAR '/tmp/x.jar'
ADD FILE '/etc/passwd'
LIST FILES
CACHE TABLE transfers
UNCACHE TABLE transfers
CLEAR CACHE
REFRESH TABLE transfers
REFRESH '/tmp'
USE default
SHOW TABLES
SHOW FUNCTIONS
SHOW CREATE TABLE transfers
DESCRIBE transfers
DESC FUNCTION hex
EXPLAIN SELECT 1
EXPLAIN EXTENDED SELECT * FROM transfers
ANALYZE TABLE transfers COMPUTE STATISTICS
LOAD DATA INPATH '/x' INTO TABLE transfers
EXECUTE IMMEDIATE 'SELECT 1'
CALL system.x()
BEGIN SELECT 1; END
BEGIN ATOMIC DROP TABLE x; END
VALUES (1)
TABLE transfers
FROM transfers SELECT *
FROM transfers INSERT OVERWRITE TABLE x SELECT *
MAP a USING 'cat' FROM transfers
REDUCE a USING 'cat' FROM transfers
COMMENT ON TABLE transfers IS 'x'
GRANT ALL ON x TO y
MSCK REPAIR TABLE x
LOCK TABLE x
PREPARE x FROM 'SELECT 1'
COPY INTO x FROM '/tmp'
;
()
(INSERT INTO x SELECT 1)
"""

_MORE_THAN_ONE = r"""
SELECT 1 AS a; SELECT 2 AS a
SELECT 1 AS a; DROP TABLE transfers
SELECT 1 AS a;; SELECT 2 AS a
SELECT 1 AS a; -- x\nSET a = b
SELECT 1 AS a;/**/DROP TABLE x
"""

_RELATIONS = r"""
SELECT * FROM other
SELECT * FROM spark_catalog.default.transfers
SELECT * FROM default.transfers
SELECT * FROM global_temp.transfers
SELECT * FROM session.transfers
SELECT * FROM system.session.transfers
SELECT * FROM information_schema.tables
SELECT * FROM parquet.`/etc/passwd`
SELECT * FROM text.`/etc/passwd`
SELECT * FROM `text`.`/etc/passwd`
SELECT * FROM json.`/tmp/x`
SELECT * FROM csv.`file:///etc/passwd`
SELECT * FROM orc.`s3://bucket/key`
SELECT * FROM delta.`/tmp/x`
SELECT * FROM avro.`/tmp/x`
SELECT * FROM binaryFile.`/etc/shadow`
SELECT * FROM jdbc.`jdbc:postgresql://x/y`
SELECT * FROM hive.`x`
SELECT * FROM iceberg.db.t
SELECT * FROM org.apache.spark.sql.parquet.`/x`
SELECT * FROM range(10)
SELECT * FROM range(1000000000000)
SELECT * FROM explode(array(1))
SELECT * FROM identifier('transfers')
SELECT * FROM IDENTIFIER('oth' || 'er')
SELECT * FROM read_files('/etc')
SELECT * FROM python_worker_logs()
SELECT * FROM sql_keywords()
SELECT * FROM collations()
SELECT * FROM java_method('java.lang.System', 'exit')
SELECT * FROM my_function(TABLE(transfers))
SELECT * FROM variant_explode(parse_json('[1]'))
SELECT * FROM stack(1, 2)
SELECT * FROM transfers JOIN other USING (block_number)
SELECT * FROM transfers, other
SELECT * FROM transfers, parquet.`/x`
SELECT * FROM transfers CROSS JOIN text.`/etc/passwd`
SELECT * FROM transfers WHERE EXISTS (SELECT 1 FROM other)
SELECT * FROM transfers WHERE amount IN (SELECT value FROM text.`/etc/passwd`)
SELECT (SELECT value FROM text.`/etc/passwd`) AS x
SELECT (SELECT max(x) FROM other) AS x FROM transfers
SELECT * FROM (SELECT * FROM other) x
SELECT * FROM ((SELECT * FROM (SELECT * FROM other) a) ) b
SELECT 1 AS a UNION SELECT x FROM other
SELECT 1 AS a EXCEPT (SELECT x FROM parquet.`/x`)
WITH a AS (SELECT * FROM other) SELECT * FROM a
WITH a AS (SELECT 1 AS n) SELECT * FROM a JOIN other ON TRUE
WITH a AS (SELECT * FROM a) SELECT * FROM a
WITH a AS (SELECT * FROM b), b AS (SELECT 1 AS n) SELECT * FROM a
WITH a AS (WITH inner_one AS (SELECT 1 AS n) SELECT * FROM inner_one) SELECT * FROM inner_one
SELECT * FROM (WITH a AS (SELECT 1 AS n) SELECT * FROM a) x JOIN a ON TRUE
SELECT * FROM transfers WHERE amount > (WITH a AS (SELECT 1 AS n) SELECT n FROM a) AND EXISTS (SELECT 1 FROM a)
WITH a AS (SELECT 1 AS n), A AS (SELECT 2 AS n) SELECT * FROM a
SELECT * FROM transfers t, LATERAL (SELECT * FROM other) x
SELECT * FROM transfers t, LATERAL range(5)
SELECT * FROM transfers t, LATERAL explode(array(1)) x
SELECT max(x) AS m FROM other
SELECT transform(array(1), x -> (SELECT max(y) FROM other)) AS a FROM transfers
SELECT sum(amount) OVER (ORDER BY (SELECT 1 FROM other)) AS x FROM transfers
SELECT CASE WHEN EXISTS (SELECT 1 FROM other) THEN 1 END AS x FROM transfers
SELECT * FROM transfers ORDER BY (SELECT max(x) FROM other)
SELECT sender FROM transfers GROUP BY sender HAVING count(*) > (SELECT 1 FROM other)
SELECT * FROM transfers t JOIN blocks b ON t.block_number = (SELECT max(n) FROM other)
SELECT * FROM (VALUES ((SELECT value FROM text.`/etc/passwd`))) AS x(a)
SELECT * FROM transfers.transfers
SELECT * FROM `default.transfers`.x
SELECT * FROM transfers2
"""

_FUNCTIONS = r"""
SELECT reflect('java.lang.System', 'getenv', 'HOME') AS x
SELECT java_method('java.lang.Runtime', 'getRuntime') AS x
SELECT try_reflect('java.lang.System', 'getenv') AS x
SELECT REFLECT('java.util.UUID', 'randomUUID') AS x
SELECT `reflect`('java.util.UUID', 'randomUUID') AS x
SELECT rEfLeCt/**/('java.util.UUID', 'randomUUID') AS x
SELECT reflect -- comment\n ('java.util.UUID', 'randomUUID') AS x
SELECT input_file_name() AS x FROM transfers
SELECT input_file_block_start() AS x FROM transfers
SELECT current_user() AS x
SELECT current_user AS x
SELECT `current_user` AS x
SELECT CURRENT_USER AS x
SELECT session_user AS x
SELECT user AS x
SELECT user() AS x
SELECT current_catalog() AS x
SELECT current_database() AS x
SELECT current_schema AS x
SELECT current_path() AS x
SELECT current_date AS x
SELECT current_timestamp AS x
SELECT now() AS x
SELECT localtimestamp AS x
SELECT localtime AS x
SELECT current_time AS x
SELECT current_timezone() AS x
SELECT version() AS x
SELECT rand() AS x
SELECT randn() AS x
SELECT uuid() AS x
SELECT shuffle(array(1)) AS x
SELECT monotonically_increasing_id() AS x FROM transfers
SELECT spark_partition_id() AS x FROM transfers
SELECT assert_true(FALSE) AS x
SELECT raise_error('x') AS x
SELECT my_udf(amount) AS x FROM transfers
SELECT aes_encrypt('a', 'b') AS x
SELECT xpath('<a/>', 'a') AS x
SELECT from_xml('<a/>', 'a INT') AS x
SELECT from_avro(hash, '{}') AS x FROM blocks
SELECT from_protobuf(hash, 'x', '/etc/passwd') AS x FROM blocks
SELECT to_protobuf(info, 'x') AS x FROM blocks
SELECT session_window(ts, '1 hour') AS x FROM blocks
SELECT sql_keywords() AS x
SELECT collation('x') AS x
SELECT measure(x) AS x FROM transfers
SELECT randstr(5) AS x
SELECT uniform(1, 2) AS x
SELECT unix_timestamp() AS x
SELECT curdate() AS x
SELECT sentences('a') AS x
SELECT amount FROM transfers WHERE reflect('a', 'b') = 'x'
SELECT amount FROM transfers ORDER BY rand()
SELECT sum(rand()) OVER () AS x FROM transfers
SELECT transform(array(1), x -> java_method('a', 'b')) AS x
SELECT filter(array(1), x -> now() > x) AS x
SELECT CASE WHEN version() = '4' THEN 1 END AS x
SELECT sender FROM transfers GROUP BY uuid(), sender
SELECT sender FROM transfers GROUP BY sender HAVING rand() > 0
SELECT t.a FROM transfers LATERAL VIEW java_method('a') t AS a
SELECT t.a FROM transfers LATERAL VIEW json_tuple('{}', 'a') t AS a
SELECT t.a FROM transfers LATERAL VIEW upper('x') t AS a
SELECT count(input_file_name()) AS x FROM transfers
SELECT * FROM transfers t JOIN blocks b ON rand() > 0.5
SELECT explode(array(uuid())) AS x
SELECT get(array(version()), 0) AS x
SELECT struct(current_user AS a) AS x
SELECT named_struct('a', now()).a AS x
SELECT CAST(now() AS STRING) AS x
SELECT now()::STRING AS x
SELECT percentile_cont(rand()) WITHIN GROUP (ORDER BY amount) AS x FROM transfers
SELECT sum(amount) FILTER (WHERE rand() > 0) AS x FROM transfers
SELECT inline(array(struct(current_date AS a))) AS (a)
"""

_CONSTRUCTS = r"""
SELECT /*+ BROADCAST(transfers) */ * FROM transfers
SELECT /*+ REPARTITION(100000) */ * FROM transfers
SELECT /*+ COALESCE(1), REPARTITION(2) */ * FROM transfers
SELECT * FROM (SELECT /*+ MAPJOIN(t) */ * FROM transfers t) x
SELECT * FROM transfers TABLESAMPLE (10 PERCENT)
SELECT * FROM transfers TABLESAMPLE (5 ROWS)
SELECT * FROM transfers SORT BY amount
SELECT * FROM transfers DISTRIBUTE BY amount
SELECT * FROM transfers CLUSTER BY amount
SELECT * FROM transfers PIVOT (sum(amount) FOR sender IN ('a'))
SELECT * FROM transfers UNPIVOT (v FOR n IN (amount))
SELECT * FROM transfers QUALIFY row_number() OVER (ORDER BY amount) = 1
SELECT * FROM transfers |> WHERE amount > 1
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM r
SELECT amount FROM transfers LIMIT amount
SELECT amount FROM transfers LIMIT 1 + 1
SELECT amount FROM transfers LIMIT (SELECT 1)
SELECT amount FROM transfers LIMIT ALL
SELECT amount FROM transfers ORDER BY ALL
SELECT sender COLLATE UTF8_LCASE AS x FROM transfers
SELECT hex(expr => amount) AS x FROM transfers
SELECT amount AS x FROM transfers FOR UPDATE
SELECT * REPLACE (1 AS amount) FROM transfers
SELECT INTERVAL '1 day 2 hours' AS x
SELECT CAST(amount AS VARCHAR(3)) AS x FROM transfers
SELECT CAST(amount AS CHAR(3)) AS x FROM transfers
SELECT amount::varchar(3) AS x FROM transfers
SELECT CAST(array('a') AS ARRAY<VARCHAR(3)>) AS x
SELECT CAST(amount AS INTERVAL DAY) AS x FROM transfers
SELECT CAST(amount AS my.own.type) AS x FROM transfers
SELECT sum(amount) OVER (ORDER BY amount GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) AS x FROM transfers
SELECT amount INTO x FROM transfers
SELECT STREAM(amount) AS x FROM transfers
SELECT * FROM STREAM transfers
SELECT * FROM transfers VERSION AS OF 1
SELECT * FROM transfers TIMESTAMP AS OF '2024-01-01'
SELECT TRANSFORM(amount) USING 'cat' AS (x) FROM transfers
SELECT TRANSFORM(amount) ROW FORMAT DELIMITED USING '/bin/sh' AS (x) FROM transfers
SELECT @x AS x
SELECT @@version AS x
SELECT ? AS x
SELECT session.v AS x, system.session.v AS y FROM IDENTIFIER('v')
SELECT sender SIMILAR TO 'a' AS x FROM transfers
SELECT amount = ANY (SELECT 1) AS x FROM transfers
SELECT amount > ALL (SELECT 1) AS x FROM transfers
SELECT amount LIKE ANY ('a', 'b') AS x FROM transfers
SELECT amount << 2 AS x FROM transfers
SELECT array(1)[0] AS x
SELECT array<int>() AS x
SELECT [1, 2] AS x
SELECT {'a': 1} AS x
SELECT DISTINCT ON (sender) * FROM transfers
SELECT TOP 5 * FROM transfers
SELECT AS STRUCT 1 AS a
SELECT * FROM transfers WINDOW
SELECT * FROM transfers ASOF JOIN blocks ON TRUE
SELECT * FROM transfers LEFT LATERAL JOIN blocks
SELECT a:b FROM transfers
SELECT amount:x:y AS x FROM transfers
SELECT {d '2024-01-01'} AS x
SELECT {{ x }} AS x
SELECT $1 AS x
SELECT N'x' AS x
SELECT r'raw' AS x
SELECT R"raw" AS x
SELECT x'f' AS x
SELECT x'zz' AS x
SELECT b'01' AS x
SELECT 0x1F AS x
SELECT amount AS x FROM transfers MATCH_RECOGNIZE (PATTERN (a))
"""

_NAMES = r"""
SELECT `a b` AS x FROM transfers
SELECT amount AS `x y` FROM transfers
SELECT amount AS `a``b` FROM transfers
SELECT amount AS `x; DROP TABLE y` FROM transfers
SELECT amount AS `../../x` FROM transfers
SELECT amount AS `x.y` FROM transfers
SELECT _metadata.file_path AS x FROM transfers
SELECT `_metadata`.file_path AS x FROM transfers
SELECT _METADATA AS x FROM transfers
SELECT transfers._metadata.file_name AS x FROM transfers
SELECT t._metadata AS x FROM transfers t
SELECT amount AS größe FROM transfers
SELECT аmount FROM transfers
SELECT amount FROM trаnsfers
SELECT * FROM `transfers`` x`
SELECT amount AS `` FROM transfers
"""

_COLUMNS = """
SELECT count(*) FROM transfers
SELECT amount + 1 FROM transfers
SELECT 1
SELECT sum(amount), sender FROM transfers GROUP BY sender
SELECT (SELECT 1)
(SELECT 1 UNION SELECT 2)
WITH a AS (SELECT 1 AS n) SELECT upper('x') FROM a
"""

_PARAMETERS = r"""
SELECT ${env:HOME} AS x
SELECT '${env:HOME}' AS x
SELECT '${system:user.name}' AS x
SELECT "${spark.app.id}" AS x
SELECT ${spark.app.name} AS x
SELECT ${hiveconf:x} AS x
SELECT ${START} AS x
SELECT ${} AS x
SELECT ${start AS x
SELECT '${start}' AS x
SELECT "${end}" AS x
SELECT amount AS `${start}` FROM transfers
SELECT 1 AS x -- ${start}
SELECT 1 AS x /* ${start} */
SELECT 'a${' AS x
SELECT ${sta${start}rt} AS x
SELECT :other AS x
SELECT :env AS x
SELECT * FROM transfers WHERE sender = ':x' AND amount = :y
"""

_SYNTAX = """
SELECT
SELECT FROM transfers
SELECT * FROM
SELECT * FROM transfers WHERE
SELECT (amount FROM transfers
SELECT amount) FROM transfers
SELECT 'open FROM transfers
SELECT amount FROM transfers WHERE a = = b
SELECT /* open FROM transfers
WITH SELECT 1
SELECT CASE WHEN 1 FROM transfers
SELECT amount | amount & 1 AS x FROM transfers
SELECT sender || amount + 1 AS x FROM transfers
SELECT amount = 1 = TRUE AS x FROM transfers
SELECT amount = sender IS NULL AS x FROM transfers
SELECT amount < 1 IN (TRUE) AS x FROM transfers
"""

_TEXT = [
    "SELECT amount\u200b FROM transfers",
    "SELECT amount FROM trans\u200cfers",
    "SELECT amount\u202e FROM transfers",
    "SELECT 'a\u202eb' AS x",
    "SELECT 'a\u200bb' AS x",
    "SELECT 1 AS x -- \u2066hidden",
    "SELECT\u00a01 AS x",
    "SELECT\u30001 AS x",
    "SELECT 1 AS x\x00",
    "SELECT 1 AS x\x1a; DROP TABLE y",
    "SELECT 1 AS\x0bx",
    "SELECT 1 AS\x0cx",
    "SELECT 1 AS x\x7f",
    "\ufeffSELECT 1 AS x",
    "SELECT 1 AS x\u2028; DROP TABLE y",
    "SELECT 1\u0085AS x",
    "SELECT '\ud800' AS x",
    r"SELECT '\u0027' AS x",
    r"SELECT '\047' AS x",
    r"SELECT '\U00000027' AS x",
    "SELECT 'it''s' AS x",
    "SELECT 'a' 'b' AS x",
    'SELECT "a""b" AS x',
]

_LIMITS = [
    "SELECT " + "x" * 20_001 + " FROM transfers",
    "SELECT " + " + ".join(["1"] * 2_600) + " AS x",
    "SELECT " + "(" * 30 + "1" + ")" * 30 + " AS x",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000 + " AS x",
    "SELECT " + "upper(" * 40 + "'x'" + ")" * 40 + " AS x",
    "SELECT * FROM " + "(SELECT * FROM " * 40 + "transfers" + ")" * 40,
    "SELECT " + "CASE WHEN TRUE THEN " * 40 + "1" + " END" * 40 + " AS x",
    "SELECT " + "NOT " * 200 + "TRUE AS x",
    "SELECT " + "- " * 200 + "1 AS x",
    "SELECT " + "-+~" * 60 + "1 AS x",
    "SELECT " + "[" * 1000 + " AS x",
    "SELECT " + " || ".join(["'a'"] * 300) + " AS x",
    "SELECT 1 AS x" + " UNION SELECT 1" * 300,
    "SELECT repeat('x', 2000000000) AS x",
    "SELECT repeat('x', amount) AS x FROM transfers",
    "SELECT space(1000000000) AS x",
    "SELECT lpad('x', 2000000000, 'y') AS x",
    "SELECT rpad('x', 100001) AS x",
    "SELECT array_repeat(1, 100000000) AS x",
    "SELECT repeat('x', 10 * 1000000000) AS x",
    "SELECT explode(sequence(1, 1000000000)) AS x",
    "SELECT explode(sequence(0, -9000000000)) AS x",
    "SELECT sequence(1, 100000000, 2) AS x",
]

_ARGUMENTS = r"""
SELECT from_json('{}', '{"type":"struct","fields":[]}') AS x
SELECT from_json('{}', concat('a ', 'INT')) AS x
SELECT from_json('{}', schema_of_json('{"a": 1}')) AS x
SELECT from_json('{}', sender) AS x FROM transfers
SELECT from_json('{}', 'a udt') AS x
SELECT from_json('{}', 'a INT', map('mode', 'NEVER')) AS x
SELECT from_json('{}', 'a INT', map('locale', 'en')) AS x
SELECT date_format(ts, sender) AS x FROM blocks
SELECT date_format(ts, 'yyyyyyyyyyyyyyyy') AS x FROM blocks
SELECT format_string('%2000000000d', 1) AS x
SELECT format_string(sender, 1) AS x FROM transfers
SELECT get_json_object('{}', sender) AS x FROM transfers
SELECT from_utc_timestamp(ts, sender) AS x FROM blocks
SELECT encode(sender, receiver) AS x FROM transfers
SELECT upper(sender, receiver) AS x FROM transfers
SELECT upper(x -> x) AS x FROM transfers
SELECT transform(array(1), 1) AS x
SELECT upper(DISTINCT sender) AS x FROM transfers
SELECT first(sender, amount > 1) AS x FROM transfers
SELECT named_struct(sender, 1) AS x FROM transfers
"""

_PATTERNS = r"""
SELECT sender RLIKE receiver AS x FROM transfers
SELECT sender LIKE concat('%', receiver) AS x FROM transfers
SELECT sender RLIKE '^(a|a|aa)+$' AS x FROM transfers
SELECT sender LIKE '%a%b%c%d%e%f%' AS x FROM transfers
SELECT regexp_replace(sender, '(a+)+b', '') AS x FROM transfers
SELECT split(sender, receiver) AS x FROM transfers
SELECT str_to_map(sender, '(,|,)+') AS x FROM transfers
SELECT sender LIKE 'a' ESCAPE 'xy' AS x FROM transfers
"""

_JOINS = """
SELECT t.amount FROM transfers t CROSS JOIN blocks b
SELECT t.amount FROM transfers t JOIN blocks b
SELECT t.amount FROM transfers t, blocks b
SELECT t.amount FROM transfers t JOIN blocks b ON TRUE
SELECT t.amount FROM transfers t JOIN blocks b ON 1 = 1
SELECT t.amount FROM transfers t JOIN blocks b ON t.amount = t.amount
SELECT t.amount FROM transfers t JOIN blocks b ON b.ts = b.ts
SELECT t.amount FROM transfers t JOIN blocks b ON t.block_number < b.block_number
SELECT t.amount FROM transfers t JOIN blocks b ON t.block_number = b.block_number OR TRUE
SELECT t.amount FROM transfers t LEFT JOIN blocks b ON t.amount > 1
SELECT t.amount FROM transfers t, blocks b, transfers u WHERE t.block_number = b.block_number
SELECT t.amount FROM transfers t JOIN blocks b ON amount = sender
SELECT t.amount FROM transfers t, LATERAL (SELECT ts FROM blocks) b
WITH a AS (SELECT amount FROM transfers) SELECT x.amount FROM a x CROSS JOIN a y
SELECT t.amount FROM transfers t CROSS JOIN (SELECT ts FROM blocks LIMIT 100000) b
"""


def _lines(text: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in text.strip().split("\n")]


HOSTILE: list[tuple[str, str]] = [
    *((query, "sql_statement") for query in [*_lines(_STATEMENTS), *_lines(_MORE_THAN_ONE), "", " ", "-- nothing"]),
    *((query, "sql_relation") for query in _lines(_RELATIONS)),
    *((query, "sql_function") for query in _lines(_FUNCTIONS)),
    *((query, "") for query in _lines(_CONSTRUCTS)),
    *((query, "sql_name") for query in _lines(_NAMES)),
    *((query, "sql_column") for query in _lines(_COLUMNS)),
    *((query, "sql_parameter") for query in _lines(_PARAMETERS)),
    *((query, "sql_syntax") for query in _lines(_SYNTAX)),
    *((query, "sql_join") for query in _lines(_JOINS)),
    *((query, "sql_argument") for query in _lines(_ARGUMENTS)),
    *((query, "sql_pattern") for query in _lines(_PATTERNS)),
    *((query, "sql_text") for query in _TEXT),
    *((query, "sql_limit") for query in _LIMITS),
]
"""An empty code: that it is refused is what counts."""
