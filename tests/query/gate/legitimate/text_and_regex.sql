--- regexp_matches | known
SELECT count(*) FROM transfers WHERE regexp_matches(sender, '^0xs[02]$')

--- tilde | known
SELECT count(*) FROM transfers WHERE sender ~ '0xs[0-1]'

--- not tilde | known
SELECT count(*) FROM transfers WHERE sender !~ '0xs[0-1]'

--- regexp_extract | known
SELECT DISTINCT regexp_extract(receiver, '0xr(\d)', 1)::INT AS n FROM transfers ORDER BY 1

--- regexp_extract by names | known
SELECT regexp_extract('2026-03-01', '(\d+)-(\d+)-(\d+)', ['y', 'm', 'd']).m

--- regexp_extract_all | known
SELECT regexp_extract_all('a1b22c333', '\d+')

--- regexp_replace | known
SELECT regexp_replace('0xAbC', '[A-Z]', '_', 'g')

--- regexp_full_match | known
SELECT count(*) FROM blocks WHERE regexp_full_match(author, '0x[ab].')

--- split by a pattern | known
SELECT string_split_regex('a, b;c', '[,;] ?')

--- like | sqlite
SELECT count(*) FROM blocks WHERE author LIKE '0xa%'

--- not like | sqlite
SELECT count(*) FROM blocks WHERE author NOT LIKE '%1'

--- ilike | known
SELECT count(*) FROM transfers WHERE token ILIKE 'hu%'

--- like with escape | sqlite
SELECT 'a_b' LIKE 'a!_b' ESCAPE '!' AS yes

--- similar to | known
SELECT 'abc' SIMILAR TO 'a(b|c)+'

--- glob | sqlite
SELECT count(*) FROM blocks WHERE author GLOB '0x[ab]*'

--- starts_with and contains | known
SELECT count(*) FROM blocks WHERE starts_with(author, '0xb') OR contains(author, 'c2')

--- concatenation | sqlite
SELECT author || '/' || block_number AS id FROM blocks WHERE block_number = 4

--- concat_ws | known
SELECT concat_ws('-', 'a', NULL, 'b')

--- upper lower length | sqlite
SELECT upper(author), lower(token), length(token) FROM blocks JOIN transfers USING (block_number) WHERE log_index = 5

--- substring forms | known
SELECT substring('0xdeadbeef' FROM 3 FOR 4), substr('abcdef', 2, 3), left('abc', 2), right('abc', 2)

--- slice of a text | known
SELECT 'abcdef'[2:4]

--- trim forms | known
SELECT trim('  a '), ltrim('xxa', 'x'), rtrim('axx', 'x'), trim(BOTH '0' FROM '00a0')

--- replace and position | known
SELECT replace('banana', 'an', 'AN'), position('n' IN 'banana'), strpos('banana', 'z')

--- split_part | known
SELECT split_part('a/b/c', '/', 2), string_split('a,b', ',')

--- lpad for an address | known
SELECT '0x' || lpad(to_hex(255), 8, '0')

--- format and printf | known
SELECT format('{:>5}|{:.2f}', 'a', 1.5), printf('%05d', 42)

--- hex and bytes | known
SELECT hex(input), octet_length(input) FROM transactions WHERE block_number = 1 ORDER BY 1

--- unhex | known
SELECT from_hex('00ff') = x'00ff'

--- hashes | known
SELECT md5('a'), sha256('a')

--- base64 | known
SELECT to_base64('abc'::BLOB), from_base64('YWJj') = 'abc'::BLOB

--- levenshtein | known
SELECT levenshtein('kitten', 'sitting')

--- chr and ascii | known
SELECT chr(65), ascii('a')

--- reverse and repeat | known
SELECT reverse('abc'), repeat('ab', 3)

--- translate | known
SELECT translate('abc', 'ab', 'xy')

--- escape string | known
SELECT E'a\tb'

--- dollar quotes | known
SELECT $$it's$$

--- quoted alias | known
SELECT author AS "the author" FROM blocks ORDER BY 1 LIMIT 1

--- unicode text | known
SELECT 'zürich' AS city, length('zürich')

--- comments | known
SELECT /* the number */ count(*) -- of blocks
FROM blocks
