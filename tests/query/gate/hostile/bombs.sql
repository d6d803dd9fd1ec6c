--- recursion without a condition | query_not_allowed
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r

--- recursion without a condition by UNION | query_not_allowed
WITH RECURSIVE r AS (SELECT 1 AS n UNION SELECT n + 1 FROM r) SELECT * FROM r

--- recursion with a cross join alone | query_not_allowed
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, blocks) SELECT * FROM r

--- recursion inside of a subquery | query_not_allowed
SELECT (WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT max(n) FROM r)

--- recursion that never ends | contained
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r WHERE n < 10) SELECT count(*) FROM r

--- recursion that doubles | contained
WITH RECURSIVE r AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM r WHERE length(s) < 1000000000000) SELECT max(length(s)) FROM r

--- recursion that branches | contained
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, range(100) WHERE n < 100) SELECT count(*) FROM r

--- cross join of many | contained
SELECT count(*) FROM blocks a, blocks b, blocks c, blocks d, blocks e, blocks f

--- range of a trillion | contained
SELECT sum(range) FROM range(1000000000000)

--- series of a trillion | contained
SELECT count(*) FROM generate_series(1, 1000000000000)

--- list of a billion | query_not_allowed
SELECT length(range(1000000000))

--- lists of lists | contained
SELECT list_transform(range(100000), lambda x: range(100000))

--- nested range | contained
SELECT unnest(range(100000)) FROM range(1000000)

--- repeat of a billion | query_not_allowed
SELECT repeat('x', 1000000000)

--- repeat by a column | query_not_allowed
SELECT repeat('x', gas_used) FROM blocks

--- repeat by a subquery | query_not_allowed
SELECT repeat('x', (SELECT max(gas_used) FROM blocks))

--- repeat by a product | query_not_allowed
SELECT repeat('x', 100000 * 100000)

--- repeat of a repeat | query_not_allowed
SELECT repeat(repeat(repeat('x', 10000), 10000), 10000)

--- rpad of a billion | query_not_allowed
SELECT rpad('x', 1000000000, 'y')

--- lpad of a billion | query_not_allowed
SELECT lpad('x', 1000000000, 'y')

--- lpad by a column | query_not_allowed
SELECT lpad('x', gas_used::INT, 'y') FROM blocks

--- format with a width | query_not_allowed
SELECT format('{:1000000000}', 1)

--- format with a nested width | query_not_allowed
SELECT format('{:{}}', 1, 1000000000)

--- format with a precision | query_not_allowed
SELECT format('{:.100000000f}', 1.5)

--- format with a computed template | query_not_allowed
SELECT format(author, 1) FROM blocks

--- printf with a width | query_not_allowed
SELECT printf('%1000000000d', 1)

--- printf with a star | query_not_allowed
SELECT printf('%*d', 1000000000, 1)

--- list_resize of a billion | query_not_allowed
SELECT list_resize([1], 1000000000)

--- array_resize by a column | query_not_allowed
SELECT array_resize([1], gas_used) FROM blocks

--- bitstring of a billion | query_not_allowed
SELECT bitstring('1', 1000000000)

--- bitstring_agg over a wide range | query_not_allowed
SELECT bitstring_agg(block_number, 0, 1000000000000) FROM blocks

--- to_base with a length | query_not_allowed
SELECT to_base(1, 2, 1000000000)

--- bar with a width | query_not_allowed
SELECT bar(1, 0, 1, 1000000000)

--- equi_width_bins of a billion | query_not_allowed
SELECT equi_width_bins(0, 1, 1000000000, true)

--- approx_top_k of a billion | query_not_allowed
SELECT approx_top_k(author, 1000000000) FROM blocks

--- reservoir_quantile of a billion | query_not_allowed
SELECT reservoir_quantile(gas_used, 0.5, 1000000000) FROM blocks

--- max of a billion | query_not_allowed
SELECT max(gas_used, 1000000000) FROM blocks

--- arg_max of a billion | query_not_allowed
SELECT arg_max(author, gas_used, 1000000000) FROM blocks

--- quantile with a computed share | query_not_allowed
SELECT quantile_cont(gas_used, base_fee) FROM blocks

--- regex with large repetitions | query_not_allowed
SELECT regexp_matches(author, '((a{1000}){1000}){1000}') FROM blocks

--- regex that is too long | query_not_allowed
SELECT regexp_matches(author, '{a * 600}') FROM blocks

--- regex from a column | query_not_allowed
SELECT regexp_matches('x', author) FROM blocks

--- regex operator from a column | query_not_allowed
SELECT 'x' ~ author FROM blocks

--- SIMILAR TO a column | query_not_allowed
SELECT 'x' SIMILAR TO author FROM blocks

--- regexp_replace that grows | query_not_allowed
SELECT regexp_replace(author, '', author, 'g') FROM blocks

--- LIKE with many wildcards | query_not_allowed
SELECT * FROM blocks WHERE author LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%b'

--- LIKE of a column | query_not_allowed
SELECT * FROM blocks WHERE 'x' LIKE author

--- ILIKE with many wildcards | query_not_allowed
SELECT * FROM blocks WHERE author ILIKE '%a%a%a%a%a%a%a%a%a%a%a%a%b'

--- NOT LIKE with many wildcards | query_not_allowed
SELECT * FROM blocks WHERE author NOT LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%b'

--- LIKE ESCAPE with many wildcards | query_not_allowed
SELECT * FROM blocks WHERE author LIKE '%a%a%a%a%a%a%a%a%a%a%b' ESCAPE '!'

--- GLOB with many wildcards | query_not_allowed
SELECT * FROM blocks WHERE author GLOB '*a*a*a*a*a*a*a*a*a*a*b'

--- sleep_ms | query_not_allowed
SELECT sleep_ms(1000000)

--- pg_sleep | query_not_allowed
SELECT pg_sleep(1000)

--- sort of everything | contained
SELECT * FROM range(1000000000) ORDER BY hash(range)

--- distinct of everything | contained
SELECT count(DISTINCT range) FROM range(10000000000)

--- list of everything | contained
SELECT list(range) FROM range(10000000000)

--- text of everything | contained
SELECT string_agg(range::VARCHAR, ',') FROM range(10000000000)

--- histogram of everything | contained
SELECT histogram(range) FROM range(10000000000)

--- window over everything | contained
SELECT sum(range) OVER (ORDER BY hash(range)) FROM range(10000000000)

--- window that is quadratic | contained
SELECT list(range) OVER (ORDER BY range ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM range(1000000)

--- hash join of everything | contained
SELECT count(*) FROM range(1000000000) a JOIN range(1000000000) b ON a.range = b.range

--- output of a billion rows | contained
SELECT * FROM range(1000000000)

--- output of wide rows | contained
SELECT repeat('x', 10000) FROM range(100000000)

--- output in one cell | contained
SELECT list(r.range) FROM range(100000000) r

--- levenshtein of long texts | contained
SELECT levenshtein(repeat('a', 10000), repeat('b', 10000)) FROM range(1000000)

--- power tower | contained
SELECT 2 ** 2 ** 2 ** 2 ** 2 ** 2

--- factorial of a large number | contained
SELECT factorial(1000000)

--- BIGNUM product | contained
SELECT product(range::DOUBLE) FROM range(1000000000)

--- replace that doubles | query_not_allowed
SELECT replace(replace(replace(repeat('a', 10000), 'a', repeat('a', 1000)), 'a', repeat('a', 1000)), 'a', 'aa')

--- concat that doubles | contained
WITH a AS (SELECT repeat('x', 10000) AS s), b AS (SELECT s || s || s || s AS s FROM a), c AS (SELECT s || s || s || s AS s FROM b), d AS (SELECT s || s || s || s AS s FROM c) SELECT length(s) FROM d

--- CTEs that double | contained
WITH a AS (SELECT 1 AS x FROM blocks), b AS (SELECT a.x FROM a, a AS a2), c AS (SELECT b.x FROM b, b AS b2), d AS (SELECT c.x FROM c, c AS c2) SELECT count(*) FROM d

--- cube of many columns | contained
SELECT count(*) FROM transactions GROUP BY CUBE (block_number, transaction_index, transaction_hash, from_address, to_address, gas_used, gas_price, success)

--- JSON that is deep | contained
SELECT json_valid(repeat('[', 10000))

--- JSON tree | contained
SELECT count(*) FROM range(10000000), json_tree('[1, [2, [3]]]')

--- text that is too long | query_too_complex
SELECT '{x * 60000}'

--- too many words | query_too_complex
SELECT {1, * 11000} 1

--- brackets that nest | query_too_complex
SELECT {( * 60}1{) * 60}

--- lists that nest | query_too_complex
SELECT {[ * 60}1{] * 60}

--- structs that nest | query_too_complex
SELECT {{ * 0}{abs( * 60}1{) * 60}

--- CASE that nests | query_too_complex
SELECT {CASE WHEN true THEN  * 60}1{ END * 60}

--- subqueries that nest | query_too_complex
SELECT {(SELECT  * 60}1{) * 60}

--- FROM that nests | query_too_complex
SELECT * FROM {(SELECT * FROM  * 60}blocks{) * 60}

--- NOT that repeats | query_too_complex
SELECT {NOT  * 100}true

--- minus that repeats | query_too_complex
SELECT {- * 1}{ - * 100}1

--- sum that is long | query_too_complex
SELECT 1{ + 1 * 2000}

--- concatenation that is long | query_too_complex
SELECT 'a'{ || 'a' * 2000}

--- casts that repeat | query_too_complex
SELECT 1{::INTEGER * 500}

--- fields that repeat | query_too_complex
SELECT (blocks){.x * 500} FROM blocks

--- unions that repeat | query_too_complex
SELECT 1{ UNION ALL SELECT 1 * 1000}

--- joins that repeat | query_too_complex
SELECT count(*) FROM blocks{ CROSS JOIN blocks AS b * 300}

--- arrows that repeat | query_too_complex
SELECT extra{ -> 'a' * 300} FROM blocks

--- types that nest | query_too_complex
SELECT NULL::{STRUCT(a  * 60}INT{) * 60}

--- lambdas that nest | query_too_complex
SELECT {list_transform([1], lambda x:  * 45}x{) * 45}
