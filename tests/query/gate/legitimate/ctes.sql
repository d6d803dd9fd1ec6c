--- one CTE | sqlite
WITH big AS (SELECT * FROM blocks WHERE gas_used > 5000) SELECT count(*) FROM big

--- chained CTEs | sqlite
WITH a AS (SELECT token, count(*) AS n FROM transfers GROUP BY token), b AS (SELECT max(n) AS m FROM a) SELECT a.token FROM a JOIN b ON a.n = b.m ORDER BY a.token

--- CTE with column names | sqlite
WITH totals(name, n) AS (SELECT token, count(*) FROM transfers GROUP BY token) SELECT name, n FROM totals ORDER BY name

--- CTE that hides a relation | known
WITH transfers AS (SELECT * FROM transfers WHERE kind = 'move') SELECT count(*) FROM transfers

--- CTE used twice | sqlite
WITH t AS (SELECT block_number AS n FROM blocks) SELECT count(*) FROM t a JOIN t b ON a.n = b.n + 1

--- nested CTE | sqlite
WITH a AS (WITH b AS (SELECT max(gas_used) AS m FROM blocks) SELECT m FROM b) SELECT m FROM a

--- CTE in a subquery | sqlite
SELECT (WITH x AS (SELECT count(*) AS n FROM logs) SELECT n FROM x) AS n

--- materialized CTE | sqlite
WITH t AS MATERIALIZED (SELECT token FROM prices) SELECT count(*) FROM t

--- not materialized CTE | sqlite
WITH t AS NOT MATERIALIZED (SELECT token FROM prices) SELECT count(*) FROM t

--- recursive numbers | sqlite
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 20) SELECT sum(n), count(*) FROM r

--- recursive factorial | sqlite
WITH RECURSIVE f(n, v) AS (SELECT 1, 1 UNION ALL SELECT n + 1, v * (n + 1) FROM f WHERE n < 10) SELECT max(v) FROM f

--- fibonacci | sqlite
WITH RECURSIVE fib(a, b, n) AS (SELECT 0, 1, 1 UNION ALL SELECT b, a + b, n + 1 FROM fib WHERE n < 15) SELECT a FROM fib ORDER BY n

--- path of money | sqlite
WITH RECURSIVE hops(address, depth) AS (SELECT '0xs0', 0 UNION SELECT t.receiver, h.depth + 1 FROM hops h JOIN transfers t ON t.sender = h.address WHERE h.depth < 3) SELECT DISTINCT address FROM hops ORDER BY address

--- recursion over blocks | sqlite
WITH RECURSIVE chain(n, gas) AS (SELECT block_number, gas_used FROM blocks WHERE block_number = 1 UNION ALL SELECT b.block_number, c.gas + b.gas_used FROM chain c JOIN blocks b ON b.block_number = c.n + 1 WHERE c.n < 9) SELECT n, gas FROM chain ORDER BY n

--- recursive dates | known
WITH RECURSIVE days(d) AS (SELECT DATE '2026-03-01' UNION ALL SELECT d + 1 FROM days WHERE d < DATE '2026-03-05') SELECT d FROM days ORDER BY d

--- recursion with a list | known
WITH RECURSIVE p(n, path) AS (SELECT 1, [1] UNION ALL SELECT n * 2, list_append(path, n * 2) FROM p WHERE n < 8) SELECT path FROM p ORDER BY n DESC LIMIT 1

--- recursion using a key | known
WITH RECURSIVE best(node, cost) USING KEY (node) AS (SELECT 1, 0 UNION ALL SELECT node + 1, cost + 2 FROM best WHERE node < 5) SELECT node, cost FROM best ORDER BY node

--- values in a CTE | sqlite
WITH v(token, weight) AS (VALUES ('HUSD', 1), ('GOLD', 3)) SELECT v.token, v.weight, count(*) AS n FROM v JOIN transfers t ON t.token = v.token GROUP BY v.token, v.weight ORDER BY v.token
