--- count of rows | sqlite
SELECT count(*) AS n FROM blocks

--- sum and average | sqlite
SELECT sum(gas_used) AS total, avg(gas_used) AS mean FROM blocks

--- group and order | sqlite
SELECT author, count(*) AS n FROM blocks GROUP BY author ORDER BY n DESC, author

--- group by position | sqlite
SELECT author, max(gas_used) FROM blocks GROUP BY 1 ORDER BY 1

--- having | sqlite
SELECT author, sum(gas_used) AS gas FROM blocks GROUP BY author HAVING sum(gas_used) > 15000 ORDER BY author

--- distinct count | sqlite
SELECT count(DISTINCT sender) AS senders, count(DISTINCT receiver) AS receivers FROM transfers

--- filtered aggregate | sqlite
SELECT token, count(*) FILTER (WHERE kind = 'mint') AS mints, count(*) FILTER (WHERE kind = 'burn') AS burns FROM transfers GROUP BY token ORDER BY token

--- conditional sum | sqlite
SELECT sum(CASE WHEN success THEN gas_used ELSE 0 END) AS used, sum(CASE WHEN NOT success THEN 1 ELSE 0 END) AS failed FROM transactions

--- null handling | sqlite
SELECT count(*) AS n, count(to_address) AS with_receiver, count(*) - count(to_address) AS creations FROM transactions

--- coalesce in a group | sqlite
SELECT coalesce(to_address, 'created') AS target, count(*) AS n FROM transactions GROUP BY coalesce(to_address, 'created') ORDER BY target

--- min and max of text | sqlite
SELECT min(token), max(token) FROM transfers

--- group by expression | sqlite
SELECT block_number % 2 AS odd, count(*) AS n FROM transfers GROUP BY block_number % 2 ORDER BY odd

--- distinct rows | sqlite
SELECT DISTINCT token, kind FROM transfers ORDER BY token, kind

--- distinct with limit | sqlite
SELECT DISTINCT author FROM blocks ORDER BY author LIMIT 2

--- limit and offset | sqlite
SELECT block_number FROM blocks ORDER BY block_number DESC LIMIT 3 OFFSET 2

--- between | sqlite
SELECT block_number, gas_used FROM blocks WHERE block_number BETWEEN 3 AND 5 ORDER BY block_number

--- in a list | sqlite
SELECT count(*) FROM transfers WHERE token IN ('HUSD', 'GOLD')

--- not in a list | sqlite
SELECT count(*) FROM transfers WHERE kind NOT IN ('mint', 'burn')

--- is null | sqlite
SELECT transaction_hash FROM transactions WHERE to_address IS NULL ORDER BY transaction_hash

--- rollup | known
SELECT token, kind, count(*) AS n FROM transfers GROUP BY ROLLUP (token, kind) ORDER BY token NULLS LAST, kind NULLS LAST

--- cube with grouping | known
SELECT token, kind, grouping(token, kind) AS g, count(*) AS n FROM transfers GROUP BY CUBE (token, kind) ORDER BY g, token, kind

--- grouping sets | known
SELECT token, kind, count(*) AS n FROM transfers GROUP BY GROUPING SETS ((token), (kind), ()) ORDER BY token NULLS LAST, kind NULLS LAST

--- group by all | known
SELECT token, kind, count(*) AS n FROM transfers GROUP BY ALL ORDER BY ALL

--- arg_max | known
SELECT token, arg_max(log_index, moved_at) AS last_log FROM transfers GROUP BY token ORDER BY token

--- max_by and min_by | known
SELECT max_by(author, gas_used), min_by(author, gas_used) FROM blocks

--- string_agg in order | known
SELECT token, string_agg(kind, '-' ORDER BY log_index) AS kinds FROM transfers WHERE log_index < 6 GROUP BY token ORDER BY token

--- listagg distinct | known
SELECT string_agg(DISTINCT token, ',' ORDER BY token) FROM transfers

--- bool aggregates | known
SELECT bool_and(success), bool_or(success) FROM transactions

--- median and mode | known
SELECT median(gas_used), mode(base_fee) FROM blocks WHERE base_fee = 7 OR block_number <= 4

--- standard deviation | known
SELECT round(stddev_pop(gas_used), 3), round(var_samp(gas_used), 3) FROM blocks

--- correlation | known
SELECT corr(block_number, gas_used), regr_slope(gas_used, block_number) FROM blocks

--- top two per group | known
SELECT max(gas_used, 2) AS top FROM blocks

--- first and last | known
SELECT first(author ORDER BY block_number), last(author ORDER BY block_number) FROM blocks

--- product and entropy | known
SELECT product(base_fee), round(entropy(author), 4) FROM blocks

--- bit aggregates | known
SELECT bit_or(base_fee), bit_and(base_fee), bit_xor(base_fee) FROM blocks

--- any_value | known
SELECT any_value(token) FROM transfers WHERE token = 'ACME'

--- count_if | known
SELECT count_if(gas_used > 5000) FROM blocks
