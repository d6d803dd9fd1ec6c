//! A function's view of its task.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{json, Map, Value};

use crate::calls::{HeartbeatReply, OutputName, Update};
use crate::encoding::{decode_base64url, encode, fields, is_file_name, read_json, read_row, refuse_truncated};
use crate::errors::Error;
use crate::event::{read_input, read_integer, read_list, read_output, read_text, FunctionInput, FunctionOutput, Unit};
use crate::http::{exchange_patiently, HttpAnswer, Services};
use crate::keys::KeyRules;
use crate::network::Network;
use crate::query::Query;
use crate::storage::{sha256, split_location, ScopedStorage};
use crate::Row;

/// Larger publishes become several batches; the platform takes 16 MiB by default.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// One attempt of a task: what it reads and writes, and its calls.
pub struct FunctionTask {
    /// The task; the same in every attempt.
    pub task_id: String,
    /// The number of the attempt, from 1.
    pub attempt: i64,
    /// The `config` of the job; an object.
    pub config: Value,
    /// What the task reads.
    pub inputs: Vec<FunctionInput>,
    /// What it may write.
    pub outputs: Vec<FunctionOutput>,
    lease_token: String,
    token: Mutex<String>,
    task_url: String,
    query_url: String,
    services: Box<dyn Services>,
    storage: ScopedStorage,
    keys: KeyRules,
    report: Mutex<Map<String, Value>>,
}

impl FunctionTask {
    /// The task of an event, with the addresses of an environment; [`crate::run`] makes it. Without services, it uses the network.
    pub fn new(
        event: &Value,
        environment: impl Fn(&str) -> Option<String>,
        services: Option<Box<dyn Services>>,
    ) -> Result<FunctionTask, Error> {
        let missing = || Error::Argument("expected the address of the platform in TRACE_TASK_URL, which is not set".into());
        let task_url = environment("TRACE_TASK_URL").ok_or_else(missing)?.trim_end_matches('/').to_string();
        let query_url = environment("TRACE_QUERY_URL").map_or(task_url.clone(), |url| url.trim_end_matches('/').to_string());
        if cfg!(not(feature = "tls")) && services.is_none() && [&task_url, &query_url].iter().any(|url| url.starts_with("https:"))
        {
            let text = "expected http addresses, since this program was built without the feature `tls` of tracelake-sdk, received https";
            return Err(Error::Argument(text.into()));
        }
        let services = match services {
            Some(services) => services,
            None => Box::new(Network::open(environment("TRACE_CA_FILE").as_deref())?),
        };
        let (task_id, attempt) = (read_text(event, "task_id")?, read_integer(event, "attempt")?);
        let (lease_token, token) = (read_text(event, "lease_token")?, read_text(event, "capability_token")?);
        Ok(FunctionTask {
            config: event["config"].as_object().cloned().unwrap_or_default().into(),
            inputs: read_list(event, "inputs", read_input)?,
            outputs: read_list(event, "outputs", read_output)?,
            keys: KeyRules::new(&task_id, attempt, &lease_token, &token, services.now()),
            storage: ScopedStorage::new(environment("AWS_ENDPOINT_URL_S3")),
            token: Mutex::new(token),
            report: Mutex::default(),
            task_id,
            attempt,
            lease_token,
            task_url,
            query_url,
            services,
        })
    }

    // Reading

    /// The rows of a SELECT over the inputs, each of which has the name of its dataset. Numbers beyond 64 bits are texts.
    pub fn query(&self, query: impl Into<Query>) -> Result<Vec<Row>, Error> {
        let reply = read_json(&self.send_query(&query.into(), None)?.body)?;
        refuse_truncated(&reply)?;
        let (Some(columns), Some(rows)) = (reply["columns"].as_array(), reply["rows"].as_array()) else {
            return Err(Error::Reply("expected columns and rows, received a reply without them".into()));
        };
        let names: Vec<&str> = columns.iter().filter_map(|column| column["name"].as_str()).collect();
        let read_row = |row: &Value| match row.as_array() {
            Some(values) if values.len() == names.len() => {
                Ok(names.iter().map(|name| name.to_string()).zip(values.iter().cloned()).collect())
            }
            _ => Err(Error::Reply(format!("expected rows of {} columns, received another one", names.len()))),
        };
        rows.iter().map(read_row).collect()
    }

    /// The result as an Arrow IPC stream.
    pub fn query_arrow(&self, query: impl Into<Query>) -> Result<Vec<u8>, Error> {
        let answer = self.send_query(&query.into(), Some("arrow"))?;
        refuse_truncated(&read_json(answer.header("x-trace-query").unwrap_or("{}").as_bytes())?)?;
        Ok(answer.body)
    }

    fn send_query(&self, query: &Query, format: Option<&str>) -> Result<HttpAnswer, Error> {
        self.send(&format!("{}/v1/task/query", self.query_url), query.body(format)?)
    }

    // Scoped storage

    /// The prefix for files of this attempt that nobody else reads.
    pub fn scratch(&self) -> Result<String, Error> {
        let token = self.token();
        let claims =
            token.split('.').nth(1).and_then(decode_base64url).and_then(|data| serde_json::from_slice::<Value>(&data).ok());
        let prefix = claims.and_then(|claims| claims["s3"]["scratch_prefix"].as_str().map(str::to_string));
        prefix.ok_or_else(|| Error::Argument("expected a capability token with a scratch prefix, received one without".into()))
    }

    /// An object: `s3://bucket/key`, or a name below [`scratch`](Self::scratch).
    pub fn get(&self, location: &str) -> Result<Vec<u8>, Error> {
        self.storage.get(self.services.as_ref(), &|place| self.ask_credentials(place), &self.locate(location)?)
    }

    /// Writes an object, whole; returns its address.
    pub fn put(&self, location: &str, data: &[u8]) -> Result<String, Error> {
        let address = self.locate(location)?;
        self.put_object(&address, data)?;
        Ok(address)
    }

    fn put_object(&self, address: &str, data: &[u8]) -> Result<(), Error> {
        self.storage.put(self.services.as_ref(), &|place| self.ask_credentials(place), address, data)
    }

    fn locate(&self, location: &str) -> Result<String, Error> {
        Ok(if location.starts_with("s3://") { location.to_string() } else { self.scratch()? + location })
    }

    fn ask_credentials(&self, location: &str) -> Result<Value, Error> {
        self.call("credentials", fields([("locations", json!([location]))]))
    }

    // Publishing

    /// Publishes rows of the only buffered output; returns their number. `key` names the columns of the declared key.
    ///
    /// Rows are visible after the task has completed. The same rows again are the same batch.
    pub fn publish<R: Serialize>(&self, rows: &[R], key: &[&str]) -> Result<usize, Error> {
        self.publish_to(OutputName::Only, rows, key)
    }

    /// The same for a named output.
    pub fn publish_to<R: Serialize>(&self, output: impl Into<OutputName>, rows: &[R], key: &[&str]) -> Result<usize, Error> {
        let target = self.choose(&output.into(), &["buffered"])?;
        let rows: Vec<Row> = rows.iter().map(read_row).collect::<Result<_, _>>()?;
        self.keys.check(&rows, key, self.services.now())?;
        let mut lines = rows.iter().map(|row| encode(row) + "\n").peekable();
        while let Some(line) = lines.next() {
            let (mut data, mut count) = (line, 1);
            while let Some(next) = lines.next_if(|next| data.len() + next.len() <= BATCH_BYTES) {
                data += &next;
                count += 1;
            }
            self.publish_batch(target, data.as_bytes(), count)?;
        }
        Ok(rows.len())
    }

    fn publish_batch(&self, target: &FunctionOutput, data: &[u8], count: usize) -> Result<(), Error> {
        let digest = sha256(data);
        let uri = format!("{}{}.jsonl", prefix_of(target)?, &digest[..32]);
        self.put_object(&uri, data)?;
        let body = fields([
            ("batch_uri", json!(uri)),
            ("dataset_uuid", json!(target.dataset_uuid)),
            ("dataset_version", json!(target.dataset_version)),
            ("record_count", json!(count)),
            ("batch_size_bytes", json!(data.len())),
            ("batch_sha256", json!(digest)),
        ]);
        self.call("buffer-publish", body).map(|_| ())
    }

    /// Writes the Parquet files of the task's unit to the only output of files. They are committed, and announced, when the
    /// task completes.
    pub fn publish_files<N: Into<String>, D: AsRef<[u8]>>(&self, files: impl IntoIterator<Item = (N, D)>) -> Result<(), Error> {
        self.publish_files_to(OutputName::Only, files)
    }

    /// The same for a named output.
    pub fn publish_files_to<N: Into<String>, D: AsRef<[u8]>>(
        &self,
        output: impl Into<OutputName>,
        files: impl IntoIterator<Item = (N, D)>,
    ) -> Result<(), Error> {
        let target = self.choose(&output.into(), &["s3"])?;
        let prefix = prefix_of(target)?;
        let files: BTreeMap<String, D> = files.into_iter().map(|(name, data)| (name.into(), data)).collect();
        if let Some(name) = files.keys().find(|name| !is_file_name(name)) {
            return Err(Error::Argument(format!("expected a name like blocks_0_9.parquet, received {name:?}")));
        }
        let (mut listing, mut size) = (Vec::new(), 0);
        for (name, data) in &files {
            let data = data.as_ref();
            self.put_object(&format!("{prefix}{name}"), data)?;
            listing.push(json!({"name": name, "size": data.len(), "sha256": sha256(data)}));
            size += data.len();
        }
        let marker = encode(&json!({"format": "trace-files-2", "files": listing}));
        self.put_object(&format!("{prefix}_SUCCESS"), marker.as_bytes())?;
        let (start, end) = self.unit_range()?;
        let place = format!("{prefix}x");
        let (bucket, key) = split_location(&place)?;
        let reference = json!({"scheme": "s3", "bucket": bucket, "prefix": &key[..key.len() - 1], "glob": "*.parquet"});
        let mut output = fields([("output_index", json!(target.index))]);
        output.extend(generation(target));
        output.extend(fields([("file_count", json!(files.len())), ("size_bytes", json!(size))]));
        let mut publication = generation(target);
        publication.extend(fields([("storage_ref", reference), ("range_start", json!(start)), ("range_end", json!(end))]));
        let mut event = generation(target);
        event.extend(fields([("partition_key", json!(format!("{start}-{end}"))), ("start", json!(start)), ("end", json!(end))]));
        for (name, entry) in [("outputs", output), ("datasets_published", publication), ("events", event)] {
            self.report_list(name, Some(entry));
        }
        Ok(())
    }

    /// Announces an update of an output without files.
    pub fn emit(&self, update: Update) -> Result<(), Error> {
        let target = self.choose(&update.output, &["none", "postgres"])?;
        let Update { mut cursor, mut partition_key, mut start, mut end, revision, .. } = update;
        if cursor.is_none() && partition_key.is_none() && start.is_none() {
            let unit = self.unit()?;
            cursor = unit.cursor.map(|cursor| cursor.to);
            (partition_key, start, end) = (unit.partition_key.clone(), unit.start, unit.end);
        }
        if let (Some(start), None) = (start, &partition_key) {
            let end = end.ok_or_else(|| Error::Argument("expected the end of the partition, received its start alone".into()))?;
            partition_key = Some(format!("{start}-{end}"));
        }
        let optional = [
            ("cursor", cursor.map(Value::from)),
            ("partition_key", partition_key.map(Value::from)),
            ("start", start.map(Value::from)),
            ("end", end.map(Value::from)),
            ("revision", revision.map(Value::from)),
        ];
        let mut event = generation(target);
        event.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))));
        self.call("events", fields([("events", json!([event]))]))?;
        self.report_list("events", None);
        Ok(())
    }

    // Life

    /// Extends the lease. `cancel` in the reply asks the function to stop.
    pub fn heartbeat(&self) -> Result<HeartbeatReply, Error> {
        let reply = self.call("heartbeat", Map::new())?;
        if let Some(token) = reply["capability_token"].as_str().filter(|token| !token.is_empty()) {
            *lock(&self.token) = token.to_string();
        }
        match (reply["cancel"].as_bool(), reply["pause"].as_bool(), reply["lease_expires_at"].as_str()) {
            (Some(cancel), Some(pause), Some(end)) => Ok(HeartbeatReply { cancel, pause, lease_expires_at: end.to_string() }),
            _ => Err(Error::Reply("expected cancel, pause and lease_expires_at, received a reply without them".into())),
        }
    }

    /// One line of JSON on standard error, which is kept as the log of the run.
    pub fn log(&self, message: &str) {
        self.log_with("info", message, json!({}));
    }

    /// The same with a level and fields, which are an object.
    pub fn log_with(&self, level: &str, message: &str, more: Value) {
        let mut entry = fields([("level", json!(level)), ("message", json!(message))]);
        entry.extend(more.as_object().cloned().unwrap_or_default());
        self.services.write_log(&(encode(&entry) + "\n"));
    }

    /// What [`crate::run`] answers: the runner completes the task with it.
    pub fn final_report(&self) -> Value {
        Value::Object(lock(&self.report).clone())
    }

    fn report_list(&self, name: &str, entry: Option<Map<String, Value>>) {
        let mut report = lock(&self.report);
        if let Value::Array(list) = report.entry(name).or_insert_with(|| json!([])) {
            list.extend(entry.map(Value::Object));
        }
    }

    // Calls

    fn call(&self, name: &str, body: Map<String, Value>) -> Result<Value, Error> {
        read_json(&self.send(&format!("{}/v1/task/{name}", self.task_url), body)?.body)
    }

    fn send(&self, url: &str, body: Map<String, Value>) -> Result<HttpAnswer, Error> {
        let mut content = fields([
            ("task_id", json!(self.task_id)),
            ("attempt", json!(self.attempt)),
            ("lease_token", json!(self.lease_token)),
        ]);
        content.extend(body);
        let data = encode(&content);
        let headers = || vec![("content-type", "application/json".to_string()), ("x-trace-task-capability", self.token())];
        let answer =
            exchange_patiently(self.services.as_ref(), &headers, "POST", url, data.as_bytes()).map_err(Error::Network)?;
        match answer.status {
            200 => Ok(answer),
            status => Err(Error::from_reply(status, &answer.body)),
        }
    }

    fn token(&self) -> String {
        lock(&self.token).clone()
    }

    // The task

    /// The named output, or the only one of these kinds.
    fn choose(&self, output: &OutputName, kinds: &[&str]) -> Result<&FunctionOutput, Error> {
        let is_named = |item: &&FunctionOutput| match output {
            OutputName::Only => true,
            OutputName::Index(index) => item.index == *index,
            OutputName::Name(name) => item.name == *name,
        };
        let matching: Vec<_> = self.outputs.iter().filter(|item| kinds.contains(&item.kind.as_str())).filter(is_named).collect();
        if let [target] = matching[..] {
            return Ok(target);
        }
        let names: Vec<_> = self.outputs.iter().map(|item| format!("{} ({}, {})", item.index, item.name, item.kind)).collect();
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        let kind = kinds.join(" or ");
        Err(Error::Argument(format!("expected one output of kind {kind}: name it; the task has {names}")))
    }

    fn unit(&self) -> Result<&Unit, Error> {
        let missing = || Error::Argument("the task has no input, so it has no unit: name a cursor or a partition".into());
        self.inputs.first().map(|input| &input.unit).ok_or_else(missing)
    }

    fn unit_range(&self) -> Result<(i64, i64), Error> {
        let unit = self.unit()?;
        match (unit.cursor, unit.start, unit.end) {
            (Some(cursor), _, _) => Ok(((cursor.after + 1).min(cursor.to), cursor.to)),
            (None, Some(start), Some(end)) => Ok((start, end)),
            _ => Err(Error::Argument("the unit of the task has no range of blocks, so it has no files".into())),
        }
    }
}

/// A call that panicked leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn generation(output: &FunctionOutput) -> Map<String, Value> {
    fields([("dataset_uuid", json!(output.dataset_uuid)), ("dataset_version", json!(output.dataset_version))])
}

fn prefix_of(output: &FunctionOutput) -> Result<&str, Error> {
    let missing = || Error::Argument(format!("the output {} has no prefix to write below", output.name));
    output.prefix.as_deref().ok_or_else(missing)
}
