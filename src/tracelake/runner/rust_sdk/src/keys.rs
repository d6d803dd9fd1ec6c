//! Keys of rows: refused if they are derived from the attempt or from the time of its run.
//!
//! A retried task publishes its rows again, and the table tells them by their key. A key must therefore follow from the
//! data, or from the unit of the task. Times between the start of the attempt and now cannot come from the data, which was
//! there before.

use serde_json::{Map, Value};

use crate::errors::Error;
use crate::moments::parse_date_time;

pub(crate) struct KeyRules {
    task_id: String,
    attempt: String,
    secrets: [(&'static str, String); 2],
    /// In whole seconds.
    started_at: f64,
}

impl KeyRules {
    pub fn new(task_id: &str, attempt: i64, lease_token: &str, token: &str, started_at: f64) -> KeyRules {
        KeyRules {
            task_id: task_id.to_lowercase(),
            attempt: attempt.to_string(),
            secrets: [("lease_token", lease_token.to_lowercase()), ("capability token", token.to_lowercase())],
            started_at: started_at.trunc(),
        }
    }

    /// Refuses the first key that another attempt would not have.
    pub fn check(&self, rows: &[Map<String, Value>], columns: &[&str], now: f64) -> Result<(), Error> {
        for (index, row) in rows.iter().enumerate() {
            let line = index + 1;
            for name in columns {
                let text = match row.get(*name) {
                    None | Some(Value::Null) => {
                        return Err(Error::UnstableKey(format!("row {line}: the key column {name} has no value")));
                    }
                    Some(Value::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                };
                if let Some(reason) = self.find_reason(&text, now) {
                    return Err(Error::UnstableKey(format!(
                        "row {line}: the key column {name} contains {reason}, which changes with the next attempt: derive the key \
                         from the data or from the unit"
                    )));
                }
            }
        }
        Ok(())
    }

    fn find_reason(&self, text: &str, now: f64) -> Option<String> {
        let lower = text.to_lowercase();
        for (name, secret) in &self.secrets {
            if !secret.is_empty() && lower.contains(secret.as_str()) {
                return Some(format!("the {name}"));
            }
        }
        if self.has_attempt(&lower) {
            return Some("the number of the attempt".into());
        }
        self.has_time(text, now).then(|| "the time of the run".into())
    }

    /// The number after the word `attempt` with at most three other characters between, or after the task's id with one.
    fn has_attempt(&self, lower: &str) -> bool {
        follows(lower, "attempt", 0, 3, &self.attempt) || follows(lower, &self.task_id, 1, 1, &self.attempt)
    }

    fn has_time(&self, text: &str, now: f64) -> bool {
        let is_of_run = |seconds: f64| self.started_at <= seconds && seconds <= now;
        let without_hashes = blank_hashes(text.as_bytes());
        let is_number =
            numbers(&without_hashes).into_iter().any(|(digits, fraction)| since_1970(digits, fraction).is_some_and(is_of_run));
        is_number || date_times(text.as_bytes()).into_iter().any(is_of_run)
    }
}

/// Whether `number` follows `word`, with `least` to `most` characters between that are neither letters nor digits.
fn follows(text: &str, word: &str, least: usize, most: usize, number: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_digit() || letter.is_ascii_lowercase();
    text.char_indices().filter_map(|(start, _)| text[start..].strip_prefix(word)).any(|rest| {
        let between = rest.chars().take_while(|letter| !is_plain(*letter)).count();
        let tail = rest.trim_start_matches(|letter| !is_plain(letter));
        let end = tail.strip_prefix(number);
        (least..=most).contains(&between) && end.is_some_and(|end| !end.starts_with(|letter: char| letter.is_ascii_digit()))
    })
}

/// Hashes may contain any digits by chance: `0x` with hex digits, or 32 and more of them.
fn blank_hashes(text: &[u8]) -> Vec<u8> {
    let run = |from: usize| text.iter().skip(from).take_while(|byte| byte.is_ascii_hexdigit()).count();
    let mut kept = Vec::with_capacity(text.len());
    let mut place = 0;
    while place < text.len() {
        let is_prefixed = text[place] == b'0' && matches!(text.get(place + 1), Some(b'x' | b'X')) && run(place + 2) > 0;
        let length = if is_prefixed { 2 + run(place + 2) } else { run(place) };
        if is_prefixed || length >= 32 {
            kept.push(b' ');
            place += length;
        } else {
            kept.push(text[place]);
            place += 1;
        }
    }
    kept
}

/// Runs of 10 to 19 digits that are not the fraction of another number, each with its own fraction.
fn numbers(text: &[u8]) -> Vec<(&[u8], &[u8])> {
    let run = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut pairs = Vec::new();
    let mut place = 0;
    while place < text.len() {
        let length = run(place);
        if length == 0 {
            place += 1;
            continue;
        }
        let end = place + length;
        let is_fraction = place > 0 && text[place - 1] == b'.';
        if is_fraction || !(10..=19).contains(&length) {
            place = end;
            continue;
        }
        let digits = &text[place..end];
        let decimals = if text.get(end) == Some(&b'.') { run(end + 1) } else { 0 };
        place = if decimals > 0 { end + 1 + decimals } else { end };
        pairs.push((digits, &text[end..place]));
    }
    pairs
}

/// Digits of a time since 1970 in seconds, milliseconds, microseconds or nanoseconds.
fn since_1970(digits: &[u8], fraction: &[u8]) -> Option<f64> {
    let unit: u64 = match digits.len() {
        10 => 1,
        13 => 1_000,
        16 => 1_000_000,
        19 => 1_000_000_000,
        _ => return None,
    };
    let value: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    // In two parts, since a float does not hold 19 digits.
    let rest = (value % unit) as f64 + read_fraction(fraction);
    Some((value / unit) as f64 + rest / unit as f64)
}

fn date_times(text: &[u8]) -> Vec<f64> {
    let moments = text.windows(19).enumerate().filter_map(|(start, part)| Some((start, parse_date_time(part)?)));
    moments
        .map(|(start, seconds)| {
            let rest = &text[start + 19..];
            let decimals =
                if rest.first() == Some(&b'.') { rest[1..].iter().take_while(|byte| byte.is_ascii_digit()).count() } else { 0 };
            seconds as f64 + if decimals > 0 { read_fraction(&rest[..=decimals]) } else { 0.0 }
        })
        .collect()
}

fn read_fraction(text: &[u8]) -> f64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> Option<String> {
        KeyRules::new("Task.1", 2, "lease", "", 1_794_830_400.25).find_reason(text, 1_794_830_460.0)
    }

    #[test]
    fn keys_of_an_attempt_or_of_its_time_are_refused() {
        let wrong = [
            "the LEASE",
            "attempt2",
            "attempt - 2",
            "xattempt: 2!",
            "task.1/2",
            "task.1é2x",
            "1794830400",
            "a1794830400.5b",
            "1794830460",
            "1794830459.999",
            "1794830400000",
            "1794830400000000000",
            "2026-11-16 12:00:59.5",
            "x2026-11-16T12:01:00",
        ];
        for text in wrong {
            assert!(reason(text).is_some(), "{text}");
        }
    }

    #[test]
    fn other_keys_are_taken() {
        let right = [
            "attempt 21",
            "attempt----2",
            "attempt x2",
            "task.12",
            "task.1//2",
            "taskx1/2",
            "1794830399",
            "1794830461",
            "1794830460.5",
            "0.1794830400",
            "17948304001794830400",
            "0x1794830400",
            "0X1794830400",
            "00000000000000000000001794830400",
            "2026-11-16T11:59:59",
            "2026-11-16T12:01:00.5",
            "2026-11-31T12:00:30",
            "2026-11-16",
            "",
            "ä",
        ];
        for text in right {
            assert_eq!(reason(text), None, "{text}");
        }
    }
}
