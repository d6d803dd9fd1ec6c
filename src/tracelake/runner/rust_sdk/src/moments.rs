//! Moments in UTC, as the protocols write them.

const DAY: i64 = 86_400;

/// `20261116T120000Z`.
pub(crate) fn format_basic(seconds: f64) -> String {
    let whole = seconds.floor() as i64;
    let (year, month, day) = civil_date(whole.div_euclid(DAY));
    let rest = whole.rem_euclid(DAY);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Seconds since 1970 of `2026-11-16T12:00:00`, with `T` or a space, a fraction and a zone (`Z`, `+02:00`) if it has them.
pub(crate) fn parse_timestamp(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let whole = parse_date_time(bytes.get(..19)?)? as f64;
    let mut end = 19;
    if bytes.get(19) == Some(&b'.') {
        end = 20 + bytes[20..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    }
    let fraction: f64 = if end > 20 { text[19..end].parse().ok()? } else { 0.0 };
    let offset = match &bytes[end..] {
        [] | [b'Z'] | [b'z'] => 0,
        [sign @ (b'+' | b'-'), hours @ .., b':', _, _] if hours.len() == 2 => {
            let minutes = 60 * number(&bytes[end + 1..end + 3])? + number(&bytes[end + 4..end + 6])?;
            60 * if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    Some(whole + fraction - offset as f64)
}

/// Seconds since 1970 of exactly `2026-11-16T12:00:00` or `2026-11-16 12:00:00`; None if there is no such moment.
pub(crate) fn parse_date_time(text: &[u8]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b' ', h1, h2, b':', i1, i2, b':', s1, s2] = text else {
        return None;
    };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    let (month, day) = (number(&[*m1, *m2])?, number(&[*d1, *d2])?);
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*i1, *i2])?, number(&[*s1, *s2])?);
    let days = days_since_1970(year, month, day);
    let is_date = year > 0 && (1..=12).contains(&month) && civil_date(days) == (year, month, day);
    (is_date && hour < 24 && minute < 60 && second < 60).then_some(days * DAY + hour * 3600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
}

/// Days are counted from March, so that the day of a leap year is the last of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let first = i64::from(month <= 2);
    (year + era * 400 + first, month, of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_eight_centuries_is_its_own() {
        for days in -150_000..150_000 {
            let (year, month, day) = civil_date(days);
            assert_eq!(days_since_1970(year, month, day), days);
        }
        assert_eq!(civil_date(0), (1970, 1, 1));
        assert_eq!(civil_date(20_773), (2026, 11, 16));
    }

    #[test]
    fn moments_are_read_and_written() {
        assert_eq!(format_basic(1_794_830_400.25), "20261116T120000Z");
        assert_eq!(parse_timestamp("2026-11-16T12:00:00Z"), Some(1_794_830_400.0));
        assert_eq!(parse_timestamp("2026-11-16T12:00:00.25+00:00"), Some(1_794_830_400.25));
        assert_eq!(parse_timestamp("2026-11-16T14:30:00+02:30"), Some(1_794_830_400.0));
        for wrong in
            ["2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-11-16T24:00:00Z", "2026-11-16", "2026-11-16T12:00:00Zx"]
        {
            assert_eq!(parse_timestamp(wrong), None, "{wrong}");
        }
        assert!(parse_timestamp("2024-02-29T00:00:00Z").is_some());
    }
}
