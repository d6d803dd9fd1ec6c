--- two parameters | known
SELECT count(*) FROM blocks WHERE block_number BETWEEN $first AND $last

--- parameter of a text | known
SELECT count(*) FROM transfers WHERE token = $token

--- parameter of a date | known
SELECT count(*) FROM prices WHERE day >= $since

--- parameter of 256 bits | known
SELECT count(*) FROM transfers WHERE amount > $least

--- parameter in LIMIT | known
SELECT block_number FROM blocks ORDER BY 1 LIMIT $first

--- parameter in a function | known
SELECT quantile_cont(gas_used, $share) FROM blocks

--- parameter used twice | known
SELECT $token || $token

--- parameter in LIKE | known
SELECT count(*) FROM transfers WHERE token LIKE $token

--- parameter in a CTE | known
WITH t AS (SELECT * FROM transfers WHERE token = $token) SELECT min(log_index) FROM t

--- parameter in CASE | known
SELECT sum(CASE WHEN block_number >= $first THEN 1 ELSE 0 END) FROM blocks
