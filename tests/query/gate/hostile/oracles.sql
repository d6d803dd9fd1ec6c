--- error function | query_not_allowed
SELECT error('secret: ' || author) FROM blocks

--- error in a CASE | query_not_allowed
SELECT CASE WHEN author = 'x' THEN error('yes') ELSE 1 END FROM blocks

--- assert_true | query_not_allowed
SELECT assert_true(gas_used > 0) FROM blocks

--- cast that fails on a value | contained
SELECT author::INTEGER FROM blocks

--- cast that fails on one value | contained
SELECT CASE WHEN author LIKE '0x1%' THEN author::INTEGER END FROM blocks

--- division that fails | contained
SELECT 1 // (gas_used - gas_used) FROM blocks

--- overflow that fails | contained
SELECT sum(gas_used) * 9223372036854775807 FROM blocks

--- decimal that fails | contained
SELECT (value * value * value)::DECIMAL(10,0) FROM transactions

--- strptime that fails on a value | contained
SELECT strptime(author, '%Y-%m-%d') FROM blocks

--- JSON that fails on a value | contained
SELECT author::JSON FROM blocks

--- chr that fails | contained
SELECT chr(gas_used::INT) FROM blocks

--- struct field that fails | query_invalid
SELECT meta.missing FROM transfers

--- date that fails on a value | contained
SELECT make_date(gas_used, 1, 1) FROM blocks

--- scalar subquery of many rows | contained
SELECT (SELECT author FROM blocks) FROM transfers

--- suggestion of a relation | query_unknown_relation
SELECT * FROM block

--- suggestion of another org | query_unknown_relation
SELECT * FROM other_org_blocks

--- suggestion of a secret view | query_unknown_relation
SELECT * FROM __trace_blocks_raw

--- suggestion of a column | query_unknown_column
SELECT autor FROM blocks

--- suggestion of a function | query_unknown_function
SELECT upperr(author) FROM blocks

--- column that does not exist in a subquery | query_unknown_column
SELECT (SELECT nonce FROM blocks b WHERE b.block_number = t.block_number) FROM transactions t

--- ambiguous column | query_invalid
SELECT block_number FROM blocks JOIN transfers ON blocks.block_number = transfers.block_number

--- types that do not fit | query_invalid
SELECT abs(author) FROM blocks

--- sum of a text | query_invalid
SELECT sum(author) FROM blocks

--- comparison of a list and a number | query_invalid
SELECT topics > 5 FROM logs

--- GROUP BY that lacks a column | query_invalid
SELECT author, gas_used, count(*) FROM blocks GROUP BY author

--- aggregate in WHERE | query_invalid
SELECT author FROM blocks WHERE sum(gas_used) > 1

--- wrong number of arguments | query_invalid
SELECT abs(1, 2)

--- union of different widths | query_invalid
SELECT 1, 2 UNION SELECT 1

--- constant that does not convert | contained
SELECT * FROM blocks WHERE block_number = 'abc'

--- heavy work if a value begins with a letter | contained
SELECT CASE WHEN author LIKE '0xa%' THEN (SELECT count(*) FROM range(100000000)) END FROM blocks

--- heavy work by a predicate | contained
SELECT count(*) FROM blocks WHERE author > 'm' AND (SELECT sum(hash(range)) FROM range(100000000)) > 0

--- memory by a predicate | contained
SELECT length(range(CASE WHEN author > 'm' THEN 1000000000 ELSE 1 END)) FROM blocks

--- row count by TABLESAMPLE | contained
SELECT count(*) FROM blocks TABLESAMPLE 10%

--- random numbers | contained
SELECT random(), uuid() FROM range(10)

--- time of the engine | contained
SELECT now(), current_timestamp

--- hash of a value | contained
SELECT hash(author), md5(author), sha256(author) FROM blocks

--- typeof of a column | contained
SELECT typeof(amount) FROM transfers LIMIT 1
