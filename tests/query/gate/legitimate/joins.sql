--- inner join | sqlite
SELECT b.block_number, t.transaction_index FROM blocks b JOIN transactions t ON b.block_number = t.block_number WHERE b.gas_used > 8000 ORDER BY 1, 2

--- join by using | sqlite
SELECT block_number, b.author, t.log_index FROM blocks b JOIN transfers t USING (block_number) WHERE block_number = 3 ORDER BY t.log_index

--- left join | sqlite
SELECT p.token, count(t.token) AS n FROM prices p LEFT JOIN transfers t ON t.token = p.token AND t.kind = 'burn' GROUP BY p.token ORDER BY p.token

--- left join that finds nothing | sqlite
SELECT b.block_number FROM blocks b LEFT JOIN transfers t ON t.block_number = b.block_number AND t.log_index > 20 WHERE t.token IS NULL ORDER BY 1

--- cross join of aggregates | sqlite
SELECT a.n, b.m FROM (SELECT count(*) AS n FROM blocks) a CROSS JOIN (SELECT count(*) AS m FROM logs) b

--- three relations | sqlite
SELECT t.token, sum(b.gas_used) AS gas, count(*) AS n FROM transfers t JOIN blocks b ON b.block_number = t.block_number JOIN transactions x ON x.block_number = b.block_number AND x.transaction_index = 0 GROUP BY t.token ORDER BY t.token

--- self join | sqlite
SELECT a.log_index, b.log_index FROM transfers a JOIN transfers b ON a.token = b.token AND a.sender = b.sender AND a.log_index < b.log_index WHERE a.token = 'HUSD' ORDER BY 1, 2

--- semi join by exists | sqlite
SELECT author FROM blocks b WHERE EXISTS (SELECT 1 FROM transfers t WHERE t.block_number = b.block_number AND t.kind = 'burn') ORDER BY block_number

--- anti join by not exists | sqlite
SELECT block_number FROM blocks b WHERE NOT EXISTS (SELECT 1 FROM transfers t WHERE t.block_number = b.block_number AND t.log_index >= 20) ORDER BY 1

--- in a subquery | sqlite
SELECT count(*) FROM transfers WHERE block_number IN (SELECT block_number FROM blocks WHERE gas_used > 6000)

--- comma join | sqlite
SELECT b.block_number, p.token FROM blocks b, prices p WHERE b.block_number < 3 AND p.usd > 3 ORDER BY 1, 2

--- right join | known
SELECT b.block_number, t.log_index FROM transfers t RIGHT JOIN blocks b ON t.block_number = b.block_number AND t.kind = 'mint' ORDER BY 1, 2

--- full join | known
SELECT coalesce(a.block_number, b.block_number) AS n, a.log_index, b.log_index FROM transfers a FULL JOIN logs b ON a.block_number = b.block_number AND a.log_index = b.log_index ORDER BY 1, 2, 3

--- asof join | known
SELECT t.log_index, p.usd FROM transfers t ASOF JOIN prices p ON t.token = p.token AND t.moved_at >= p.quoted_at WHERE t.token = 'HUSD' ORDER BY t.log_index

--- asof left join | known
SELECT t.log_index, t.token, p.usd FROM transfers t ASOF LEFT JOIN prices p ON t.token = p.token AND t.moved_at >= p.quoted_at ORDER BY 1

--- semi join | known
SELECT block_number FROM blocks SEMI JOIN transfers USING (block_number) WHERE block_number > 7 ORDER BY 1

--- anti join | known
SELECT block_number FROM blocks b ANTI JOIN transfers t ON b.block_number = t.block_number AND t.log_index >= 20 ORDER BY 1

--- natural join | known
SELECT count(*) FROM transactions NATURAL JOIN logs

--- positional join | known
SELECT b.block_number, p.token FROM (SELECT * FROM blocks ORDER BY block_number LIMIT 3) b POSITIONAL JOIN (SELECT * FROM prices ORDER BY usd LIMIT 3) p

--- lateral join | known
SELECT b.block_number, l.n FROM blocks b, LATERAL (SELECT count(*) AS n FROM transfers t WHERE t.block_number = b.block_number) l WHERE b.block_number <= 4 ORDER BY 1

--- lateral column alias | known
SELECT gas_used AS g, g * 2 AS doubled, doubled + 1 AS more FROM blocks WHERE block_number = 2

--- join by a range | known
SELECT t.log_index, p.day FROM transfers t JOIN prices p ON t.token = p.token AND t.moved_at >= p.day AND t.moved_at < p.day + INTERVAL 1 DAY ORDER BY 1

--- join with inequality | sqlite
SELECT count(*) FROM blocks a JOIN blocks b ON a.gas_used < b.gas_used

--- scalar subquery | sqlite
SELECT block_number FROM blocks WHERE gas_used = (SELECT max(gas_used) FROM blocks)

--- correlated scalar subquery | sqlite
SELECT b.block_number, (SELECT count(*) FROM logs l WHERE l.block_number = b.block_number) AS logs FROM blocks b ORDER BY 1

--- any and all | known
SELECT block_number FROM blocks WHERE gas_used >= ALL (SELECT gas_used FROM blocks) OR block_number = ANY ([1, 2]) ORDER BY 1
