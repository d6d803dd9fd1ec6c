//! What calls take and return.

/// What the platform says to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The function is asked to stop.
    pub cancel: bool,
    /// A source is asked to emit nothing for now.
    pub pause: bool,
    /// The new end of the lease.
    pub lease_expires_at: String,
}

/// An output, by its number or its name; without one, the only output of the kind that a call writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OutputName {
    /// The only one.
    #[default]
    Only,
    /// By number.
    Index(i64),
    /// By name.
    Name(String),
}

impl From<i64> for OutputName {
    fn from(index: i64) -> OutputName {
        OutputName::Index(index)
    }
}

impl From<&str> for OutputName {
    fn from(name: &str) -> OutputName {
        OutputName::Name(name.to_string())
    }
}

/// An update of an output without files: a cursor or a partition, by default the unit of the task.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// The output that was updated.
    pub output: OutputName,
    /// The position up to which it was updated.
    pub cursor: Option<i64>,
    /// The partition that was updated.
    pub partition_key: Option<String>,
    /// The first block of the partition.
    pub start: Option<i64>,
    /// The last block of the partition.
    pub end: Option<i64>,
    /// What tells this update from an earlier one of the same unit.
    pub revision: Option<String>,
}
