--- row_number | sqlite
SELECT block_number, row_number() OVER (PARTITION BY author ORDER BY block_number) AS r FROM blocks ORDER BY block_number

--- running sum | sqlite
SELECT block_number, sum(gas_used) OVER (ORDER BY block_number) AS running FROM blocks ORDER BY block_number

--- moving average | sqlite
SELECT block_number, avg(gas_used) OVER (ORDER BY block_number ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS moving FROM blocks ORDER BY block_number

--- lag and lead | sqlite
SELECT block_number, lag(gas_used) OVER (ORDER BY block_number) AS before, lead(gas_used, 2, 0) OVER (ORDER BY block_number) AS after FROM blocks ORDER BY block_number

--- difference to the last | sqlite
SELECT block_number, gas_used - lag(gas_used, 1, gas_used) OVER (ORDER BY block_number) AS delta FROM blocks ORDER BY 1

--- rank and dense_rank | sqlite
SELECT block_number, rank() OVER (ORDER BY base_fee) AS r, dense_rank() OVER (ORDER BY base_fee) AS d FROM blocks ORDER BY block_number

--- ntile | sqlite
SELECT block_number, ntile(3) OVER (ORDER BY block_number) AS third FROM blocks ORDER BY block_number

--- percent_rank and cume_dist | sqlite
SELECT block_number, percent_rank() OVER (ORDER BY gas_used) AS p, cume_dist() OVER (ORDER BY gas_used) AS c FROM blocks ORDER BY 1

--- first and last value | sqlite
SELECT log_index, first_value(log_index) OVER (PARTITION BY token ORDER BY log_index) AS f, last_value(log_index) OVER (PARTITION BY token ORDER BY log_index ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS l FROM transfers ORDER BY log_index

--- nth_value | sqlite
SELECT log_index, nth_value(log_index, 2) OVER (PARTITION BY token ORDER BY log_index) AS second FROM transfers ORDER BY log_index

--- named window | sqlite
SELECT block_number, sum(gas_used) OVER w AS s, count(*) OVER w AS n FROM blocks WINDOW w AS (PARTITION BY author ORDER BY block_number) ORDER BY block_number

--- share of a total | sqlite
SELECT author, 1.0 * sum(gas_used) / sum(sum(gas_used)) OVER () AS share FROM blocks GROUP BY author ORDER BY author

--- groups frame | sqlite
SELECT block_number, count(*) OVER (ORDER BY base_fee GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM blocks ORDER BY 1

--- exclude current row | sqlite
SELECT block_number, sum(gas_used) OVER (ORDER BY block_number ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS around FROM blocks ORDER BY 1

--- filtered window | sqlite
SELECT log_index, count(*) FILTER (WHERE kind = 'mint') OVER (ORDER BY log_index) AS mints FROM transfers ORDER BY log_index

--- range frame over time | known
SELECT log_index, count(*) OVER (ORDER BY moved_at RANGE BETWEEN INTERVAL 3 HOURS PRECEDING AND CURRENT ROW) AS n FROM transfers ORDER BY log_index

--- qualify | known
SELECT token, log_index FROM transfers QUALIFY row_number() OVER (PARTITION BY token ORDER BY moved_at DESC) = 1 ORDER BY token

--- qualify a rank | known
SELECT block_number FROM blocks QUALIFY rank() OVER (ORDER BY gas_used DESC) <= 2 ORDER BY 1

--- ignore nulls | known
SELECT block_number, transaction_index, last_value(to_address IGNORE NULLS) OVER (ORDER BY block_number, transaction_index) AS last_seen FROM transactions ORDER BY 1, 2

--- sessions | known
WITH marked AS (SELECT sender, moved_at, CASE WHEN moved_at - lag(moved_at) OVER (PARTITION BY sender ORDER BY moved_at) <= INTERVAL 4 HOURS THEN 0 ELSE 1 END AS starts FROM transfers) SELECT sender, sum(starts) AS sessions FROM marked GROUP BY sender ORDER BY sender

--- gaps and islands | sqlite
WITH numbered AS (SELECT block_number, block_number - row_number() OVER (ORDER BY block_number) AS island FROM transfers WHERE kind = 'burn' GROUP BY block_number) SELECT min(block_number) AS first, max(block_number) AS last, count(*) AS n FROM numbered GROUP BY island ORDER BY 1

--- distinct aggregate over a window | known
SELECT log_index, count(DISTINCT token) OVER (ORDER BY log_index) AS tokens FROM transfers ORDER BY log_index

--- window over an aggregate | sqlite
SELECT token, count(*) AS n, rank() OVER (ORDER BY count(*) DESC, token) AS r FROM transfers GROUP BY token ORDER BY token

--- list over a window | known
SELECT block_number, list(block_number) OVER (ORDER BY block_number ROWS 2 PRECEDING) AS last_three FROM blocks WHERE block_number <= 4 ORDER BY 1
