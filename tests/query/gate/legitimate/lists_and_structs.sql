--- list element | known
SELECT DISTINCT topics[1] AS t FROM logs ORDER BY 1

--- list slice | known
SELECT topics[2:3] AS rest FROM logs WHERE block_number = 2 AND log_index = 1

--- list length | known
SELECT len(topics) AS n, count(*) FROM logs GROUP BY 1 ORDER BY 1

--- unnest in SELECT | known
SELECT unnest(topics) AS t, count(*) AS n FROM logs GROUP BY 1 ORDER BY 1

--- unnest in FROM | known
SELECT u.t, count(*) AS n FROM logs, unnest(topics) u(t) GROUP BY 1 ORDER BY 1

--- unnest with ordinality | known
SELECT u.t, u.ordinality FROM logs, unnest(topics) WITH ORDINALITY u(t, ordinality) WHERE block_number = 2 ORDER BY ALL

--- list contains | known
SELECT count(*) FROM logs WHERE list_contains(topics, '0xp2')

--- in a list column | known
SELECT count(*) FROM logs WHERE '0xp1' IN topics

--- list aggregate | known
SELECT list(log_index ORDER BY log_index) FROM transfers WHERE token = 'GOLD' AND log_index < 10

--- list_transform | known
SELECT list_transform([1, 2, 3], lambda x: x * x)

--- list_filter | known
SELECT list_filter(range(10), lambda x: x % 3 = 0)

--- list_reduce | known
SELECT list_reduce([1, 2, 3, 4], lambda x, y: x + y)

--- list comprehension | known
SELECT [x * 2 FOR x IN [1, 2, 3, 4] IF x > 2]

--- list_sum and friends | known
SELECT list_sum([1, 2, 3]), list_max([4, 9, 2]), list_avg([1, 2])

--- list_aggregate by name | known
SELECT list_aggregate([1, 2, 4], 'sum')

--- list_sort and distinct | known
SELECT list_sort([3, 1, 2], 'DESC'), list_sort(list_distinct([2, 1, 2]))

--- list_zip and concat | known
SELECT list_zip([1, 2], ['a', 'b']), list_concat([1], [2, 3])

--- flatten | known
SELECT flatten([[1], [2, 3]])

--- list_position and slice | known
SELECT list_position([5, 6, 7], 6), list_slice([1, 2, 3, 4], 2, 3)

--- array from a subquery | known
SELECT ARRAY(SELECT block_number FROM blocks WHERE block_number < 4 ORDER BY 1) AS a

--- struct field | known
SELECT sum(meta.fee) FROM transfers

--- struct field by brackets | known
SELECT max(meta['fee']) FROM transfers

--- struct literal | known
SELECT {'a': block_number, 'b': {'c': author}} AS s FROM blocks WHERE block_number = 3

--- struct_pack and extract | known
SELECT struct_extract(struct_pack(x := 1, y := 'a'), 'y')

--- struct_insert | known
SELECT struct_insert({'a': 1}, b := 2)

--- unnest of a struct | known
SELECT unnest({'a': 1, 'b': 2})

--- nested list of a struct | known
SELECT count(*) FROM transfers WHERE len(meta.route) = 2

--- row comparison | sqlite
SELECT count(*) FROM transactions WHERE (block_number, transaction_index) > (5, 0)

--- map literal | known
SELECT map {'a': 1, 'b': 2}['b'] AS b

--- map functions | known
SELECT map_keys(map(['x', 'y'], [1, 2])), map_values(map_from_entries([('k', 7)]))

--- histogram as a map | known
SELECT histogram(kind) FROM transfers

--- list of structs | query_ambiguous
SELECT list({'t': token, 'n': log_index} ORDER BY log_index)[1].t FROM transfers

--- whole row as a struct | known
SELECT p FROM prices p ORDER BY token, day LIMIT 1

--- list_has_any | known
SELECT count(*) FROM logs WHERE list_has_any(topics, ['0xp0', '0xp2'])

--- array_to_string | known
SELECT array_to_string(topics, '/') FROM logs WHERE block_number = 2 AND log_index = 1
