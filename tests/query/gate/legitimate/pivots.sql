--- pivot statement | known
PIVOT transfers ON kind IN ('move', 'mint', 'burn') USING count(*) GROUP BY token ORDER BY token

--- pivot with two aggregates | known
PIVOT transfers ON token IN ('HUSD', 'GOLD') USING count(*) AS n, max(log_index) AS last GROUP BY kind ORDER BY kind

--- pivot clause | known
SELECT * FROM (SELECT token, kind, log_index FROM transfers) PIVOT (sum(log_index) FOR kind IN ('move', 'mint', 'burn') GROUP BY token) ORDER BY token

--- pivot in a subquery | known
SELECT token, mint FROM (PIVOT transfers ON kind IN ('mint') USING count(*) GROUP BY token) ORDER BY token

--- pivot in a CTE | known
WITH p AS (PIVOT prices ON token IN ('HUSD', 'ACME') USING max(usd) GROUP BY day) SELECT * FROM p ORDER BY day

--- unpivot statement | known
UNPIVOT (SELECT block_number, gas_used, base_fee FROM blocks WHERE block_number < 3) ON gas_used, base_fee INTO NAME metric VALUE v ORDER BY block_number, metric

--- unpivot clause | known
SELECT block_number, metric, v FROM (SELECT block_number, gas_used, base_fee FROM blocks) UNPIVOT (v FOR metric IN (gas_used, base_fee)) ORDER BY 1, 2

--- unpivot with nulls | known
SELECT count(*) FROM (SELECT from_address, to_address FROM transactions) UNPIVOT INCLUDE NULLS (a FOR side IN (from_address, to_address))

--- pivot by hand | sqlite
SELECT token, sum(CASE WHEN kind = 'mint' THEN 1 ELSE 0 END) AS mints, sum(CASE WHEN kind = 'burn' THEN 1 ELSE 0 END) AS burns FROM transfers GROUP BY token ORDER BY token
