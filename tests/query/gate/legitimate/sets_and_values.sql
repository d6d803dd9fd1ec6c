--- union | sqlite
SELECT sender AS a FROM transfers UNION SELECT receiver FROM transfers ORDER BY a

--- union all | sqlite
SELECT count(*) FROM (SELECT token FROM transfers UNION ALL SELECT token FROM prices)

--- except | sqlite
SELECT block_number FROM blocks EXCEPT SELECT block_number FROM transfers WHERE log_index < 5 ORDER BY 1

--- intersect | sqlite
SELECT token FROM prices INTERSECT SELECT token FROM transfers ORDER BY 1

--- union of three | sqlite
SELECT 1 AS n UNION SELECT 2 UNION SELECT 2 ORDER BY n

--- union by name | known
SELECT 1 AS a, 2 AS b UNION ALL BY NAME SELECT 3 AS b, 4 AS a ORDER BY a

--- except all | known
SELECT token FROM transfers EXCEPT ALL SELECT token FROM prices ORDER BY 1

--- values alone | known
VALUES (1, 'a'), (2, 'b')

--- values in FROM | known
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) v(n, c) ORDER BY n DESC

--- values in a join | sqlite
SELECT v.column1, b.gas_used FROM (SELECT 1 AS column1 UNION ALL SELECT 2) v JOIN blocks b ON b.block_number = v.column1 ORDER BY 1

--- FROM first | known
FROM blocks SELECT count(*)

--- FROM alone | known
FROM prices ORDER BY token, day

--- TABLE | known
TABLE prices

--- star exclude | known
SELECT * EXCLUDE (extra, block_hash) FROM blocks ORDER BY block_number

--- star replace | known
SELECT * REPLACE (gas_used / 1000 AS gas_used) FROM blocks ORDER BY block_number

--- star rename | known
SELECT * RENAME (usd AS price) FROM prices ORDER BY token, day

--- columns by a pattern | known
SELECT min(COLUMNS('.*_index')) FROM transactions

--- columns by a lambda | known
SELECT COLUMNS(lambda c: c LIKE 'gas%') FROM transactions ORDER BY ALL LIMIT 2

--- qualified star | known
SELECT p.*, t.log_index FROM prices p JOIN transfers t USING (token) WHERE t.log_index = 0 ORDER BY p.day

--- distinct on | known
SELECT DISTINCT ON (token) token, log_index FROM transfers ORDER BY token, log_index DESC

--- range in FROM | known
SELECT sum(range) FROM range(1, 11)

--- series in FROM | known
SELECT count(*) FROM generate_series(1, 100, 5) s(n)

--- series of days | known
SELECT count(*) FROM generate_series(TIMESTAMP '2026-03-01', TIMESTAMP '2026-03-08', INTERVAL 1 DAY)

--- prefix alias | known
SELECT n: count(*), m: max(gas_used) FROM blocks

--- sample | known
SELECT count(*) <= 10 FROM (SELECT * FROM blocks USING SAMPLE 5 ROWS)

--- limit by percent | known
SELECT count(*) FROM (SELECT * FROM blocks LIMIT 50%)

--- order by all | known
SELECT token, usd FROM prices ORDER BY ALL

--- case with ranges | sqlite
SELECT CASE WHEN gas_used < 4000 THEN 'low' WHEN gas_used < 8000 THEN 'middle' ELSE 'high' END AS band, count(*) AS n FROM blocks GROUP BY 1 ORDER BY 1

--- simple case | sqlite
SELECT CASE kind WHEN 'mint' THEN 1 WHEN 'burn' THEN -1 ELSE 0 END AS sign, count(*) FROM transfers GROUP BY 1 ORDER BY 1
