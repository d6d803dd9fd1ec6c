--- arrow | known
SELECT extra->'client'->'major' AS m FROM blocks WHERE block_number = 3

--- double arrow | known
SELECT extra->>'$.client.name' AS name, count(*) AS n FROM blocks GROUP BY 1 ORDER BY 1

--- json_extract | sqlite
SELECT block_number, json_extract(extra, '$.client.major') AS major FROM blocks ORDER BY 1

--- json_extract_string | known
SELECT DISTINCT json_extract_string(decoded, '$.event') AS event FROM logs ORDER BY 1

--- array element | known
SELECT (decoded->'$.args[1]')::BIGINT AS twice FROM logs WHERE block_number = 5 ORDER BY 1

--- json in WHERE | known
SELECT count(*) FROM logs WHERE decoded->>'event' = 'Transfer'

--- json_array_length | sqlite
SELECT max(json_array_length(extra, '$.tags')) FROM blocks

--- json_keys | known
SELECT json_keys(extra) FROM blocks LIMIT 1

--- json_type and valid | known
SELECT json_type(extra, '$.tags'), json_valid('{bad') FROM blocks LIMIT 1

--- json_each | known
SELECT e.value::VARCHAR AS tag FROM blocks b, json_each(b.extra, '$.tags') e WHERE b.block_number = 2 ORDER BY 1

--- json object | known
SELECT json_object('n', block_number, 'gas', gas_used) FROM blocks WHERE block_number = 1

--- json group array | known
SELECT json_group_array(block_number) FROM (SELECT block_number FROM blocks WHERE block_number < 4 ORDER BY 1)

--- to_json of a struct | known
SELECT to_json({'a': 1, 'b': [1, 2]})

--- from_json | known
SELECT from_json(extra, '{"client": {"name": "VARCHAR", "major": "BIGINT"}}').client.major AS m FROM blocks WHERE block_number = 4

--- json_merge_patch | known
SELECT json_merge_patch('{"a": 1}', '{"b": 2}')

--- json_contains | known
SELECT count(*) FROM blocks WHERE json_contains(extra, '{"tags": ["t7"]}')

--- json path list | known
SELECT json_extract(decoded, ['$.event', '$.args[0]']) FROM logs WHERE block_number = 1 AND log_index = 1

--- json wildcard | known
SELECT json_extract(extra, '$.tags[*]') FROM blocks WHERE block_number = 9

--- cast of json | known
SELECT sum((extra->'$.client.major')::INT) FROM blocks
