//! A query and its parameters.

use serde_json::{json, Map, Value};

use crate::errors::Error;

/// A SELECT over the inputs, each of which has the name of its dataset.
#[derive(Debug, Clone)]
pub struct Query {
    sql: String,
    parameters: Vec<(String, Parameter)>,
    limit: Option<u64>,
}

impl Query {
    /// A query without parameters.
    pub fn new(sql: impl Into<String>) -> Query {
        Query { sql: sql.into(), parameters: Vec::new(), limit: None }
    }

    /// Gives `$name` a value.
    pub fn bind(mut self, name: impl Into<String>, value: impl Into<Parameter>) -> Query {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// Returns at most so many rows.
    pub fn limit(mut self, rows: u64) -> Query {
        self.limit = Some(rows);
        self
    }

    pub(crate) fn body(&self, format: Option<&str>) -> Result<Map<String, Value>, Error> {
        let mut body = Map::new();
        body.insert("sql".into(), json!(self.sql));
        if !self.parameters.is_empty() {
            let typed = self.parameters.iter().map(|(name, value)| Ok((name.clone(), value.describe()?)));
            body.insert("parameters".into(), Value::Object(typed.collect::<Result<_, Error>>()?));
        }
        if let Some(rows) = self.limit {
            body.insert("limit".into(), json!(rows));
        }
        if let Some(format) = format {
            body.insert("format".into(), json!(format));
        }
        Ok(body)
    }
}

impl From<&str> for Query {
    fn from(sql: &str) -> Query {
        Query::new(sql)
    }
}

impl From<String> for Query {
    fn from(sql: String) -> Query {
        Query::new(sql)
    }
}

/// The value of a parameter. Most values of Rust and of JSON become one; [`Parameter::typed`] is for the others.
#[derive(Debug, Clone)]
pub struct Parameter(Content);

#[derive(Debug, Clone)]
enum Content {
    Bytes(Vec<u8>),
    Integer(i128),
    Typed(String, Value),
    Json(Value),
}

impl Parameter {
    /// A value of a type of the platform, such as `uint256` with `"7"`.
    pub fn typed(kind: impl Into<String>, value: impl Into<Value>) -> Parameter {
        Parameter(Content::Typed(kind.into(), value.into()))
    }

    fn describe(&self) -> Result<Value, Error> {
        let kind_of = |kind: &str, value: Value| Ok(json!({"type": kind, "value": value}));
        match &self.0 {
            Content::Bytes(data) => kind_of("bytes", json!(format!("0x{}", crate::http::to_hex(data)))),
            Content::Integer(number) => match i64::try_from(*number) {
                Ok(small) => kind_of("int64", json!(small)),
                Err(_) => kind_of("int256", json!(number.to_string())),
            },
            Content::Typed(kind, value) => kind_of(kind, value.clone()),
            Content::Json(Value::Bool(value)) => kind_of("bool", json!(value)),
            Content::Json(Value::String(text)) => kind_of("text", json!(text)),
            Content::Json(Value::Number(number)) => match (number.as_i64(), number.as_u64()) {
                (Some(small), _) => kind_of("int64", json!(small)),
                (None, Some(large)) => kind_of("int256", json!(large.to_string())),
                (None, None) => kind_of("float64", json!(number)),
            },
            Content::Json(Value::Object(fields)) if fields.contains_key("type") && fields.contains_key("value") => {
                Ok(Value::Object(fields.clone()))
            }
            Content::Json(other) => {
                let kind = match other {
                    Value::Null => "null (or a number that is not finite)",
                    Value::Array(_) => "an array",
                    _ => "an object",
                };
                Err(Error::Argument(format!("expected a boolean, number, text, bytes or {{type, value}}, received {kind}")))
            }
        }
    }
}

macro_rules! parameters {
    ($($kind:ty => $content:expr),* $(,)?) => {
        $(impl From<$kind> for Parameter {
            fn from(value: $kind) -> Parameter {
                let make: fn($kind) -> Content = $content;
                Parameter(make(value))
            }
        })*
    };
}

parameters! {
    bool => |value| Content::Json(json!(value)),
    f64 => |value| Content::Json(json!(value)),
    &str => |value| Content::Json(json!(value)),
    String => |value| Content::Json(json!(value)),
    Value => Content::Json,
    i32 => |value| Content::Integer(value.into()),
    i64 => |value| Content::Integer(value.into()),
    i128 => Content::Integer,
    u32 => |value| Content::Integer(value.into()),
    u64 => |value| Content::Integer(value.into()),
    &[u8] => |value| Content::Bytes(value.to_vec()),
    Vec<u8> => Content::Bytes,
}
