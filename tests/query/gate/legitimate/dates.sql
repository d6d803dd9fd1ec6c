--- date_trunc | known
SELECT date_trunc('day', moved_at) AS day, count(*) AS n FROM transfers GROUP BY 1 ORDER BY 1

--- hour of day | known
SELECT extract(hour FROM moved_at) AS h, count(*) AS n FROM transfers GROUP BY 1 HAVING count(*) > 0 ORDER BY 1 LIMIT 2

--- date_part | known
SELECT date_part('dow', DATE '2026-03-01'), date_part('year', DATE '2026-03-01')

--- date_diff | known
SELECT date_diff('hour', min(moved_at), max(moved_at)) FROM transfers

--- interval arithmetic | known
SELECT max(moved_at) - INTERVAL 2 HOURS FROM transfers

--- dates and integers | known
SELECT DATE '2026-03-01' + 5, DATE '2026-03-10' - DATE '2026-03-01'

--- time_bucket | known
SELECT time_bucket(INTERVAL 6 HOURS, moved_at) AS bucket, count(*) AS n FROM transfers GROUP BY 1 ORDER BY 1

--- strftime | known
SELECT DISTINCT strftime(day, '%Y/%m/%d') AS d FROM prices ORDER BY 1

--- strptime | known
SELECT strptime('02.03.2026', '%d.%m.%Y')

--- comparison with a timestamp | known
SELECT count(*) FROM transfers WHERE moved_at >= TIMESTAMP '2026-03-02 00:00:00'

--- comparison with a text | known
SELECT count(*) FROM transfers WHERE moved_at >= '2026-03-02 06:00:00'

--- between dates | known
SELECT count(*) FROM prices WHERE day BETWEEN '2026-03-01' AND '2026-03-02'

--- epoch | known
SELECT epoch(TIMESTAMP '2026-03-01 00:00:00')::BIGINT, to_timestamp(0) AT TIME ZONE 'UTC'

--- year month day | known
SELECT year(d), month(d), day(d) FROM (SELECT DATE '2026-03-09' AS d)

--- dayname and monthname | known
SELECT dayname(DATE '2026-03-01'), monthname(DATE '2026-03-01')

--- last_day and make_date | known
SELECT last_day(make_date(2028, 2, 1))

--- age | known
SELECT age(TIMESTAMP '2026-03-05', TIMESTAMP '2026-03-01')

--- time zone | known
SELECT (TIMESTAMP '2026-03-01 12:00:00' AT TIME ZONE 'UTC') AT TIME ZONE 'Asia/Tokyo'

--- intervals of columns | known
SELECT max(moved_at + to_hours(log_index)) FROM transfers WHERE log_index = 3

--- series and left join | known
SELECT s.d, count(t.log_index) AS n FROM generate_series(TIMESTAMP '2026-03-01', TIMESTAMP '2026-03-04', INTERVAL 1 DAY) s(d) LEFT JOIN transfers t ON date_trunc('day', t.moved_at) = s.d GROUP BY 1 ORDER BY 1

--- current date | known
SELECT current_date > DATE '2020-01-01', now() > TIMESTAMPTZ '2020-01-01 00:00:00+00'

--- week and quarter | known
SELECT week(DATE '2026-03-01'), quarter(DATE '2026-03-01')

--- cast to date | known
SELECT moved_at::DATE AS d, count(*) FROM transfers GROUP BY 1 ORDER BY 1
