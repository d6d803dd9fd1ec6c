--- text as a relation | query_unknown_relation
SELECT * FROM '/etc/passwd'

--- CSV by its name | query_unknown_relation
SELECT * FROM 'secrets.csv'

--- Parquet by its name | query_unknown_relation
SELECT * FROM 'data/*.parquet'

--- quoted file name | query_unknown_relation
SELECT * FROM "secrets.csv"

--- quoted path | query_unknown_relation
SELECT * FROM "/etc/passwd"

--- quoted URL | query_unknown_relation
SELECT * FROM "http://attacker.example/x.parquet"

--- text in a join | query_unknown_relation
SELECT * FROM blocks JOIN 'x.json' ON true

--- text after FROM first | query_unknown_relation
FROM '/etc/passwd'

--- text in TABLE | query_unknown_relation
TABLE "x.csv"

--- text in a CTE | query_unknown_relation
WITH a AS (FROM 'x.parquet') SELECT * FROM a

--- text in IN | query_unknown_relation
SELECT * FROM blocks WHERE author IN (SELECT column0 FROM 'x.csv')

--- text with an alias | query_unknown_relation
SELECT x.* FROM 'x.csv' AS x

--- text as a PIVOT source | query_unknown_relation
PIVOT 'x.csv' ON a IN (1) USING sum(b)

--- dollar text as a relation | query_syntax
SELECT * FROM $$x.csv$$

--- escaped text as a relation | query_syntax
SELECT * FROM E'x\x2ecsv'

--- name of a Python variable | query_unknown_relation
SELECT * FROM relations

--- name of a frame in the caller | query_unknown_relation
SELECT * FROM df

--- CTE of the same text elsewhere | query_not_allowed
WITH "x.csv" AS (SELECT 1) SELECT * FROM "x.csv"

--- CTE named like a system view | query_not_allowed
WITH duckdb_tables AS (SELECT 1 AS x) SELECT * FROM duckdb_tables

--- CTE visible in its sibling only afterwards | query_unknown_relation
WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a

--- CTE out of its subquery | query_unknown_relation
SELECT * FROM (WITH inner_one AS (SELECT 1) SELECT * FROM inner_one) JOIN inner_one ON true

--- CTE out of an expression | query_unknown_relation
SELECT (WITH e AS (SELECT 1 AS x) SELECT x FROM e), (SELECT x FROM e)

--- CTE of one side of a union | query_unknown_relation
(WITH e AS (SELECT 1 AS x) SELECT * FROM e) UNION ALL SELECT * FROM e

--- CTE that reads itself without RECURSIVE | query_unknown_relation
WITH mine AS (SELECT * FROM mine) SELECT * FROM mine

--- recursive name in its first part | query_unknown_relation
WITH RECURSIVE r AS (SELECT * FROM r UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r

--- recursive name of another WITH | query_unknown_relation
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q WHERE n < 5) SELECT * FROM r

--- recurring table | query_unknown_relation
WITH RECURSIVE r(n) USING KEY (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM recurring.r WHERE n < 5) SELECT * FROM r
