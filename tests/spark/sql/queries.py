"""Queries that people write. Each passes both gates and runs on the tables of `tables.py`."""

# ruff: noqa: E501 - a query is easier to read in one line

BENIGN = [
    # --- plain
    "SELECT * FROM transfers",
    "select block_number, amount from transfers where amount > 5 and (sender = 'a' or not receiver = 'b')",
    "SELECT DISTINCT sender FROM transfers",
    "SELECT t.block_number AS block_number, t.amount AS amount FROM transfers t;",
    "SELECT t.* FROM transfers AS t",
    "SELECT * EXCEPT (amount) FROM transfers",
    "SELECT `block_number`, `amount` FROM `transfers`",
    "SELECT TRANSFERS.block_number FROM Transfers",
    "(SELECT block_number FROM transfers)",
    "SELECT 1 AS one, 'x' AS x, TRUE AS yes, 1.5 AS d, 1e3 AS e, CAST(NULL AS INT) AS n, X'ff00' AS b, 5L AS l",
    "-- what comes in\nSELECT block_number /* of the chain */ FROM transfers -- all",
    "SELECT block_number FROM transfers WHERE block_number BETWEEN ${start} AND ${end}",
    "SELECT block_number FROM transfers WHERE block_number > :after AND block_number <= :to",
    "SELECT ${partition_key} AS unit, count(*) AS n FROM transfers",
    "SELECT sender FROM transfers ORDER BY sender DESC NULLS FIRST LIMIT 3 OFFSET 1",
    # --- joins
    "SELECT t.block_number, b.ts FROM transfers t JOIN blocks b ON t.block_number = b.block_number",
    "SELECT t.block_number, b.ts FROM transfers t LEFT JOIN blocks b USING (block_number)",
    "SELECT t.block_number FROM transfers t LEFT SEMI JOIN blocks b ON t.block_number = b.block_number",
    "SELECT t.block_number FROM transfers t LEFT ANTI JOIN blocks b ON t.block_number = b.block_number",
    "SELECT coalesce(t.block_number, b.block_number) AS block_number FROM transfers t FULL OUTER JOIN blocks b"
    " ON t.block_number = b.block_number",
    "SELECT t.block_number FROM transfers t RIGHT OUTER JOIN blocks b ON t.block_number = b.block_number",
    "SELECT t.block_number, b.newest FROM transfers t CROSS JOIN (SELECT max(ts) AS newest FROM blocks) b",
    "SELECT t.block_number FROM transfers t, blocks b WHERE t.block_number = b.block_number",
    "SELECT block_number FROM transfers NATURAL JOIN blocks",
    "SELECT a.block_number FROM transfers a JOIN transfers b ON a.sender = b.receiver AND a.block_number < b.block_number",
    "SELECT t.block_number, n.name FROM transfers t JOIN (VALUES ('a', 'Alice'), ('b', 'Bob')) AS n(id, name)"
    " ON t.sender = n.id",
    # --- aggregation
    "SELECT sender, sum(amount) AS total, count(*) AS n, count(DISTINCT receiver) AS receivers, avg(amount) AS mean,"
    " min(amount) AS low, max(amount) AS high FROM transfers GROUP BY sender HAVING sum(amount) > 1",
    "SELECT sender, receiver, sum(amount) AS total FROM transfers GROUP BY ROLLUP (sender, receiver)",
    "SELECT sender, receiver, sum(amount) AS total FROM transfers GROUP BY CUBE (sender, receiver)",
    "SELECT sender, receiver, sum(amount) AS total FROM transfers GROUP BY GROUPING SETS ((sender, receiver), (sender), ())",
    "SELECT sender, sum(amount) AS total FROM transfers GROUP BY ALL",
    "SELECT sender, sum(amount) AS total FROM transfers GROUP BY 1 ORDER BY 2 DESC",
    "SELECT sum(amount) FILTER (WHERE sender = 'a') AS a, count_if(amount > 3) AS n FROM transfers",
    "SELECT percentile_approx(amount, 0.5) AS p50, median(amount) AS m FROM transfers",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS p FROM transfers",
    "SELECT max_by(sender, amount) AS top, collect_set(sender) AS senders, approx_count_distinct(sender) AS n FROM transfers",
    "SELECT stddev(amount) AS s, variance(amount) AS v, corr(amount, block_number) AS c FROM transfers",
    # --- windows
    "SELECT block_number, sum(amount) OVER (PARTITION BY sender ORDER BY block_number) AS running FROM transfers",
    "SELECT block_number, row_number() OVER (PARTITION BY sender ORDER BY block_number DESC, amount) AS n,"
    " rank() OVER (ORDER BY amount) AS r, lag(amount, 1, 0) OVER (ORDER BY block_number) AS before FROM transfers",
    "SELECT avg(amount) OVER (ORDER BY block_number ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS moving FROM transfers",
    "SELECT sum(amount) OVER (ORDER BY block_number RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) AS s FROM transfers",
    "SELECT sum(amount) OVER (ORDER BY block_number ROWS 2 PRECEDING) AS s FROM transfers",
    "SELECT sum(amount) OVER w AS s FROM transfers WINDOW w AS (PARTITION BY sender ORDER BY block_number)",
    "SELECT sum(amount) OVER (w) AS s, max(amount) OVER v AS m FROM transfers WINDOW w AS (PARTITION BY sender), v AS w",
    "SELECT last_value(amount) IGNORE NULLS OVER (ORDER BY block_number) AS l FROM transfers",
    # --- subqueries, common table expressions, sets
    "WITH big AS (SELECT * FROM transfers WHERE amount > 3) SELECT sender, count(*) AS n FROM big GROUP BY sender",
    "WITH a AS (SELECT sender AS s FROM transfers), b AS (SELECT s FROM a WHERE s <> 'a') SELECT s FROM b",
    "WITH transfers AS (SELECT block_number FROM transfers) SELECT block_number FROM transfers",
    "WITH x(n) AS (SELECT amount FROM transfers) SELECT n FROM x",
    "SELECT n FROM (WITH x AS (SELECT amount AS n FROM transfers) SELECT n FROM x) y",
    "SELECT block_number FROM transfers WHERE amount = (SELECT max(amount) FROM transfers)",
    "SELECT block_number FROM transfers t WHERE EXISTS (SELECT 1 FROM blocks b WHERE b.block_number = t.block_number)",
    "SELECT block_number FROM transfers WHERE block_number NOT IN (SELECT block_number FROM blocks)",
    "SELECT block_number FROM transfers UNION ALL SELECT block_number FROM blocks",
    "SELECT block_number FROM transfers UNION SELECT block_number FROM blocks ORDER BY block_number LIMIT 3",
    "SELECT block_number FROM transfers INTERSECT SELECT block_number FROM blocks EXCEPT SELECT 1",
    "WITH a AS (SELECT 1 AS n) SELECT n FROM a UNION ALL (WITH a AS (SELECT 2 AS n) SELECT n FROM a)",
    "SELECT t.sender, x.n FROM transfers t, LATERAL (SELECT count(*) AS n FROM blocks b WHERE b.block_number = t.block_number) x",
    # --- expressions
    "SELECT CASE WHEN amount > 5 THEN 'big' WHEN amount > 2 THEN 'some' ELSE 'small' END AS size FROM transfers",
    "SELECT CASE sender WHEN 'a' THEN 1 ELSE 0 END AS a, if(amount > 3, 1, 0) AS i, nullif(amount, 1) AS n FROM transfers",
    "SELECT amount + 1 AS a, amount - 1 AS b, amount * 2 AS c, amount / 2 AS d, amount DIV 2 AS e, amount % 2 AS f,"
    " -amount AS g, amount & 3 AS h, amount | 4 AS i, amount ^ 1 AS j, ~amount AS k FROM transfers",
    "SELECT sender || '-' || receiver AS pair, sender <=> receiver AS same, sender IS DISTINCT FROM receiver AS d,"
    " sender IS NULL AS n, sender IS NOT NULL AS nn, (amount > 1) IS TRUE AS t FROM transfers",
    r"SELECT sender FROM transfers WHERE sender LIKE 'a%' OR sender ILIKE '%B' OR sender RLIKE '^[ab]\\d*$'",
    "SELECT sender FROM transfers WHERE sender LIKE 'a!%' ESCAPE '!' AND sender NOT LIKE 'z' AND sender IN ('a', 'b')",
    "SELECT sender FROM transfers WHERE (sender, receiver) IN (SELECT receiver, sender FROM transfers)",
    "SELECT CAST(amount AS DECIMAL(38, 0)) * CAST(2 AS DECIMAL(10, 2)) AS d, amount::string AS s,"
    " TRY_CAST(sender AS INT) AS i, CAST(amount AS DOUBLE) / 3 AS f FROM transfers",
    "SELECT CAST('[1]' AS STRING) AS s, CAST(array(1) AS ARRAY<BIGINT>) AS a, CAST(map('a', 1) AS MAP<STRING, BIGINT>) AS m,"
    " CAST(named_struct('x', 1) AS STRUCT<x: BIGINT>) AS t",
    "SELECT try_divide(amount, 0) AS d, round(amount / 3, 2) AS r, pmod(amount, 2) AS p, conv('ff', 16, 10) AS c FROM transfers",
    # --- bytes and text
    "SELECT hex(hash) AS h, lower(hex(hash)) AS l, concat('0x', lower(hex(hash))) AS x, length(hash) AS n FROM blocks",
    "SELECT unhex('ff') AS b, substring(hash, 1, 2) AS p, sha2(hash, 256) AS s, md5(hash) AS m, hash = X'01' AS e FROM blocks",
    "SELECT CAST(conv(hex(substring(hash, 1, 4)), 16, 10) AS DECIMAL(20, 0)) AS n FROM blocks",
    "SELECT upper(sender) AS u, trim('  x ') AS t, trim(LEADING '0' FROM '001') AS z, lpad(sender, 10, '0') AS p,"
    " split('a,b', ',')[0] AS f, regexp_extract('x12', '([0-9]+)', 1) AS r, replace('a', 'a', 'b') AS w FROM transfers",
    r"SELECT 'it\'s' AS q, 'tab\there' AS t, 'Grüße 🙂' AS u, '%_' AS p, '\\' AS b, \"double\" AS d".replace(
        '\\"', '"'
    ),
    # --- dates
    "SELECT date_trunc('hour', ts) AS h, to_date(ts) AS d, year(ts) AS y, EXTRACT(MONTH FROM ts) AS m,"
    " date_format(ts, 'yyyy-MM-dd') AS f, unix_timestamp AS u FROM (SELECT ts, unix_seconds(ts) AS unix_timestamp FROM blocks)",
    "SELECT ts + INTERVAL 1 DAY AS t, ts - INTERVAL '2' HOURS AS h, date_add(to_date(ts), 1) AS d,"
    " datediff(DATE '2024-01-02', DATE '2024-01-01') AS n, timestampdiff(HOUR, ts, TIMESTAMP '2024-01-02 00:00:00') AS x,"
    " timestampadd(MINUTE, 5, ts) AS z FROM blocks",
    "SELECT timestamp_seconds(1700000000) AS t, make_date(2024, 1, 1) AS d, last_day(DATE '2024-02-01') AS l",
    # --- arrays, maps, structs
    "SELECT transform(tags, x -> upper(x)) AS u, filter(tags, (x, i) -> i > 0) AS f, exists(tags, x -> x = 'p') AS e,"
    " aggregate(transform(tags, x -> length(x)), 0, (acc, x) -> acc + x) AS n, size(tags) AS s FROM blocks",
    "SELECT block_number, tag FROM blocks LATERAL VIEW explode(tags) t AS tag",
    "SELECT block_number, p, tag FROM blocks LATERAL VIEW OUTER posexplode(tags) t AS p, tag",
    "SELECT block_number, explode(tags) AS tag FROM blocks",
    "SELECT block_number, posexplode(tags) AS (position, tag) FROM blocks",
    "SELECT inline(array(struct(1 AS a, 'x' AS b))) AS (a, b)",
    "SELECT stack(2, 1, 'a', 2, 'b') AS (n, s)",
    "SELECT explode(sequence(1, 5)) AS n",
    "SELECT tags[0] AS first, element_at(map('a', 1), 'a') AS m, map('k', 2)['k'] AS k, named_struct('a', 1).a AS s,"
    " struct(sender AS who, amount AS much) AS st, array_contains(array(1, 2), 1) AS c"
    " FROM transfers JOIN blocks USING (block_number)",
    "SELECT info.miner AS miner, b.info.size AS size FROM blocks b",
    "SELECT from_json('{\"a\": 1}', 'a INT').a AS a, get_json_object('{\"a\": 1}', '$.a') AS g, to_json(info) AS j FROM blocks",
    "SELECT sort_array(collect_list(amount)) AS sorted, array_join(collect_set(sender), ',') AS j FROM transfers",
    "SELECT zip_with(array(1), array(2), (a, b) -> a + b) AS z, map_filter(map('a', 1), (k, v) -> v > 0) AS m",
    "SELECT t.user FROM (SELECT sender AS user FROM transfers) t",
]
