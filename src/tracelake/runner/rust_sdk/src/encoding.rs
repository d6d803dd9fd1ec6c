//! JSON, names and base64 of the SDK.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::errors::Error;
use crate::Row;

pub(crate) fn fields<const N: usize>(items: [(&str, Value); N]) -> Map<String, Value> {
    items.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

pub(crate) fn read_row<R: Serialize>(row: &R) -> Result<Row, Error> {
    match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Error::Argument("expected rows that are objects, received another value".into())),
        Err(error) => Err(Error::Argument(format!("expected rows that JSON can hold: {error}"))),
    }
}

/// Compact JSON in the order of the fields.
pub(crate) fn encode<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("objects of JSON have text keys")
}

pub(crate) fn read_json(data: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(data).map_err(|error| Error::Reply(format!("expected JSON, received another reply: {error}")))
}

pub(crate) fn refuse_truncated(summary: &Value) -> Result<(), Error> {
    if summary["truncated"].as_bool() != Some(true) {
        return Ok(());
    }
    let row_count = summary["row_count"].as_u64().unwrap_or_default();
    Err(Error::ResultTooLarge { row_count, output_location: summary["output_location"].as_str().map(str::to_string) })
}

/// `[A-Za-z0-9][A-Za-z0-9._=-]*\.parquet`
pub(crate) fn is_file_name(name: &str) -> bool {
    let stem = name.strip_suffix(".parquet").unwrap_or_default();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._=-".contains(letter);
    stem.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && stem.chars().all(is_plain)
}

pub(crate) fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let (mut data, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        (bits, count) = ((bits << 6 | u32::from(value)) & 0xffff, count + 6);
        if count >= 8 {
            count -= 8;
            data.push((bits >> count) as u8);
        }
    }
    Some(data)
}
