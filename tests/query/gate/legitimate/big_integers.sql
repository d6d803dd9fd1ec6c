--- sum of 256 bits | known
SELECT sum(amount)::VARCHAR FROM transfers

--- sum of 256 bits per token | known
SELECT token, sum(amount)::VARCHAR AS total FROM transfers GROUP BY token ORDER BY token

--- largest of 256 bits | known
SELECT max(amount)::VARCHAR, min(amount)::VARCHAR FROM transfers

--- comparison of 256 bits | known
SELECT count(*) FROM transfers WHERE amount > '1606938044258990275541962092341162602522212993782792835301376'::BIGNUM

--- literal of 256 bits | known
SELECT 115792089237316195423570985008687907853269984665640564039457584007913129639935::BIGNUM::VARCHAR AS most

--- sum of hugeints | known
SELECT sum(value)::VARCHAR FROM transactions

--- hugeint arithmetic | known
SELECT (170141183460469231731687303715884105727::HUGEINT - 1)::VARCHAR

--- decimal arithmetic | known
SELECT sum(gas_used::DECIMAL(38,0) * gas_price)::VARCHAR AS fees FROM transactions

--- decimal division | known
SELECT round(sum(value) / 1e30, 1) FROM transactions

--- exact decimals | known
SELECT (0.1 + 0.2)::VARCHAR, 1.10::DECIMAL(10,2) * 3

--- integer division | known
SELECT 7 // 2, 7 % 3, 7 / 2

--- bits | known
SELECT 5 & 3, 5 | 3, 1 << 4, xor(5, 3), bit_count(7)

--- try_cast | known
SELECT try_cast('abc' AS INTEGER), try_cast('12' AS BIGINT)
