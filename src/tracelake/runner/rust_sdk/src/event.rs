//! The event of a task, read.

use serde_json::Value;

use crate::errors::Error;

/// What the task reads of one dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionInput {
    /// The name of the dataset, which queries use.
    pub name: String,
    /// The part of it that the task is for.
    pub unit: Unit,
    /// The revision of the unit; mostly empty.
    pub revision: String,
    /// The condition of the edge in the DAG, by column; null if there is none.
    pub r#where: Value,
    /// The dataset.
    pub dataset_uuid: String,
    /// Its generation.
    pub dataset_version: String,
}

/// A unit of work: a cursor, or a partition, which may be a range of blocks.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Unit {
    /// The updates after one position, up to another.
    pub cursor: Option<Cursor>,
    /// The key of the partition; `{start}-{end}` for a range of blocks.
    pub partition_key: Option<String>,
    /// The first block.
    pub start: Option<i64>,
    /// The last block.
    pub end: Option<i64>,
}

/// Positions `after < x <= to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The last position that was read before.
    pub after: i64,
    /// The last position of this unit.
    pub to: i64,
}

/// A dataset that the task may write.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionOutput {
    /// Its number in the job.
    pub index: i64,
    /// Its name.
    pub name: String,
    /// `s3`, `buffered`, `postgres` or `none`.
    pub kind: String,
    /// Where files (`s3`) or batches (`buffered`) are written.
    pub prefix: Option<String>,
    /// The dataset.
    pub dataset_uuid: String,
    /// Its generation.
    pub dataset_version: String,
}

pub(crate) fn read_text(item: &Value, name: &str) -> Result<String, Error> {
    match item[name].as_str() {
        Some(text) => Ok(text.to_string()),
        None => Err(missing(name)),
    }
}

pub(crate) fn read_integer(item: &Value, name: &str) -> Result<i64, Error> {
    item[name].as_i64().ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::Argument(format!("expected the event of a task, received one without `{name}`: is the function called by a runner?"))
}

pub(crate) fn read_list<T>(event: &Value, name: &str, read: impl Fn(&Value) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    event[name].as_array().into_iter().flatten().map(read).collect()
}

pub(crate) fn read_input(item: &Value) -> Result<FunctionInput, Error> {
    Ok(FunctionInput {
        name: read_text(item, "name")?,
        unit: read_unit(&item["unit"])?,
        revision: item["revision"].as_str().unwrap_or_default().to_string(),
        r#where: item["where"].clone(),
        dataset_uuid: read_text(item, "dataset_uuid")?,
        dataset_version: read_text(item, "dataset_version")?,
    })
}

fn read_unit(unit: &Value) -> Result<Unit, Error> {
    let cursor = &unit["cursor"];
    let cursor = match cursor.is_object() {
        true => Some(Cursor { after: read_integer(cursor, "after")?, to: read_integer(cursor, "to")? }),
        false => None,
    };
    let partition_key = unit["partition_key"].as_str().map(str::to_string);
    Ok(Unit { cursor, partition_key, start: unit["start"].as_i64(), end: unit["end"].as_i64() })
}

pub(crate) fn read_output(item: &Value) -> Result<FunctionOutput, Error> {
    let storage = &item["storage"];
    let prefix = storage["write_prefix"].as_str().or(storage["buffer_prefix"].as_str());
    Ok(FunctionOutput {
        index: read_integer(item, "output_index")?,
        name: read_text(item, "name")?,
        kind: read_text(storage, "kind")?,
        prefix: prefix.map(str::to_string),
        dataset_uuid: read_text(item, "dataset_uuid")?,
        dataset_version: read_text(item, "dataset_version")?,
    })
}
