// The SDK of functions in JavaScript. It needs nothing but Node. docs/functions.md describes each call; the vectors in
// sdk/vectors define what every call sends and returns, for the SDKs of all languages.

import { encode } from "./encoding.mjs";
import { ArgumentError, CallError, FencedError, ResultTooLargeError } from "./errors.mjs";
import { exchangePatiently, openNetwork } from "./http.mjs";
import { KeyRules } from "./keys.mjs";
import { ScopedStorage, sha256, splitLocation } from "./storage.mjs";

export * from "./errors.mjs";

const BATCH_BYTES = 8 * 1024 * 1024;
const FILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._=-]*\.parquet$/;
const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class FunctionTask {
  #leaseToken;
  #token;
  #taskUrl;
  #queryUrl;
  #exchange;
  #clock;
  #sleep;
  #storage;
  #keys;
  #report = {};

  /** Made by `handler`; the other arguments are for tests. */
  constructor(event, environment = process.env, exchange, clock = () => Date.now() / 1000, sleep = wait) {
    this.taskId = event.task_id;
    this.attempt = event.attempt;
    this.config = event.config ?? {};
    this.inputs = (event.inputs ?? []).map(readInput);
    this.outputs = (event.outputs ?? []).map(readOutput);
    this.#leaseToken = event.lease_token;
    this.#token = event.capability_token;
    this.#taskUrl = environment.TRACE_TASK_URL.replace(/\/+$/, "");
    this.#queryUrl = (environment.TRACE_QUERY_URL ?? this.#taskUrl).replace(/\/+$/, "");
    this.#exchange = exchange ?? openNetwork(environment.TRACE_CA_FILE);
    this.#clock = clock;
    this.#sleep = sleep;
    const ask = (location) => this.#call("credentials", { locations: [location] });
    this.#storage = new ScopedStorage(ask, this.#exchange, environment.AWS_ENDPOINT_URL_S3, clock, sleep);
    this.#keys = new KeyRules({
      taskId: this.taskId,
      attempt: this.attempt,
      leaseToken: this.#leaseToken,
      token: this.#token,
      startedAt: clock(),
    });
  }

  // Reading

  async query(sql, parameters = {}, { limit } = {}) {
    const reply = JSON.parse((await this.#query(sql, parameters, limit)).body);
    if (reply.truncated) throw new ResultTooLargeError(reply.row_count, reply.output_location);
    const names = reply.columns.map((column) => column.name);
    return reply.rows.map((row) => Object.fromEntries(names.map((name, index) => [name, row[index]])));
  }

  async queryArrow(sql, parameters = {}, { limit } = {}) {
    const answer = await this.#query(sql, parameters, limit, "arrow");
    const summary = JSON.parse(answer.headers["x-trace-query"] ?? "{}");
    if (summary.truncated) throw new ResultTooLargeError(summary.row_count, summary.output_location);
    return answer.body;
  }

  #query(sql, parameters, limit, format) {
    const entries = Object.entries(parameters ?? {}).map(([name, value]) => [name, describeParameter(value)]);
    const values = entries.length ? Object.fromEntries(entries) : undefined;
    return this.#send(`${this.#queryUrl}/v1/task/query`, { sql, parameters: values, limit: limit ?? undefined, format });
  }

  // Scoped storage

  get scratch() {
    return JSON.parse(Buffer.from(this.#token.split(".")[1], "base64url")).s3.scratch_prefix;
  }

  async get(location) {
    return this.#storage.get(this.#locate(location));
  }

  async put(location, data) {
    const address = this.#locate(location);
    await this.#storage.put(address, Buffer.from(data));
    return address;
  }

  #locate(location) {
    return location.startsWith("s3://") ? location : this.scratch + location;
  }

  // Publishing

  async publish(rows, { key, output } = {}) {
    const target = this.#choose(output, "buffered");
    const batch = [...rows];
    this.#keys.check(batch, typeof key === "string" ? [key] : key, this.#clock());
    for (const lines of split(batch)) {
      const data = Buffer.concat(lines);
      const digest = sha256(data);
      const uri = `${target.prefix}${digest.slice(0, 32)}.jsonl`;
      await this.#storage.put(uri, data);
      await this.#call("buffer-publish", {
        batch_uri: uri,
        dataset_uuid: target.datasetUuid,
        dataset_version: target.datasetVersion,
        record_count: lines.length,
        batch_size_bytes: data.length,
        batch_sha256: digest,
      });
    }
    return batch.length;
  }

  async publishFiles(files, { output } = {}) {
    const target = this.#choose(output, "s3");
    const names = Object.keys(files).sort();
    const wrong = names.find((name) => !FILE_NAME.test(name));
    if (wrong !== undefined) {
      throw new ArgumentError(`expected a name like blocks_0_9.parquet, received ${JSON.stringify(wrong)}`);
    }
    const listing = [];
    for (const name of names) {
      const data = Buffer.from(files[name]);
      await this.#storage.put(target.prefix + name, data);
      listing.push({ name, size: data.length, sha256: sha256(data) });
    }
    await this.#storage.put(`${target.prefix}_SUCCESS`, Buffer.from(encode({ format: "trace-files-2", files: listing })));
    const [start, end] = this.#unitRange();
    const { bucket, key } = splitLocation(`${target.prefix}x`);
    const generation = generationOf(target);
    const size = listing.reduce((total, file) => total + file.size, 0);
    this.#add("outputs", { output_index: target.index, ...generation, file_count: listing.length, size_bytes: size });
    this.#add("datasets_published", {
      ...generation,
      storage_ref: { scheme: "s3", bucket, prefix: key.slice(0, -1), glob: "*.parquet" },
      range_start: start,
      range_end: end,
    });
    this.#add("events", { ...generation, partition_key: `${start}-${end}`, start, end });
  }

  async emit({ output, cursor, partitionKey, start, end, revision } = {}) {
    const target = this.#choose(output, "none", "postgres");
    let fields = { cursor, partition_key: partitionKey, start, end };
    if (cursor === undefined && partitionKey === undefined && start === undefined) {
      const unit = this.#unit();
      fields = { cursor: unit.cursor?.to, partition_key: unit.partition_key, start: unit.start, end: unit.end };
    }
    if (fields.start !== undefined) fields.partition_key ??= `${fields.start}-${fields.end}`;
    await this.#call("events", { events: [{ ...generationOf(target), ...fields, revision }] });
    this.#report.events ??= [];
  }

  // Life

  async heartbeat() {
    const reply = await this.#call("heartbeat", {});
    this.#token = reply.capability_token ?? this.#token;
    return { cancel: reply.cancel, pause: reply.pause, lease_expires_at: reply.lease_expires_at };
  }

  log(message, { level = "info", ...fields } = {}) {
    process.stderr.write(`${encode({ level, message, ...fields })}\n`);
  }

  finalReport() {
    return this.#report;
  }

  // Calls

  async #call(name, body) {
    return JSON.parse((await this.#send(`${this.#taskUrl}/v1/task/${name}`, body)).body);
  }

  async #send(url, body) {
    const fence = { task_id: this.taskId, attempt: this.attempt, lease_token: this.#leaseToken };
    const data = Buffer.from(encode({ ...fence, ...body }));
    const makeHeaders = () => ({ "content-type": "application/json", "x-trace-task-capability": this.#token });
    const answer = await exchangePatiently(this.#exchange, makeHeaders, "POST", url, data, this.#sleep);
    if (answer.status !== 200) throw readRefusal(answer);
    return answer;
  }

  // The task

  #add(name, entry) {
    (this.#report[name] ??= []).push(entry);
  }

  #choose(output, ...kinds) {
    let matching = this.outputs.filter((item) => kinds.includes(item.kind));
    if (output !== undefined && output !== null) {
      matching = matching.filter((item) => output === item.index || output === item.name);
    }
    if (matching.length !== 1) {
      const names = this.outputs.map((item) => `${item.index} (${item.name}, ${item.kind})`).join(", ") || "none";
      const kind = kinds.join(" or ");
      throw new ArgumentError(`expected one output of kind ${kind}: name it with \`output\`; the task has ${names}`);
    }
    return matching[0];
  }

  #unit() {
    if (!this.inputs.length) {
      throw new ArgumentError("the task has no input, so it has no unit: name a cursor or a partition");
    }
    return this.inputs[0].unit;
  }

  #unitRange() {
    const unit = this.#unit();
    if (unit.cursor) return [Math.min(unit.cursor.after + 1, unit.cursor.to), unit.cursor.to];
    if (unit.start === undefined || unit.start === null) {
      throw new ArgumentError("the unit of the task has no range of blocks, so it has no files");
    }
    return [unit.start, unit.end];
  }
}

/** Makes a Lambda handler of a function that takes its task. What the function returns is ignored. */
export function handler(run) {
  return async (event, _context) => {
    const task = new FunctionTask(event);
    await run(task);
    return task.finalReport();
  };
}

function readInput(item) {
  return {
    name: item.name,
    unit: item.unit,
    revision: item.revision ?? "",
    where: item.where ?? null,
    datasetUuid: item.dataset_uuid,
    datasetVersion: item.dataset_version,
  };
}

function readOutput(item) {
  return {
    index: item.output_index,
    name: item.name,
    kind: item.storage.kind,
    prefix: item.storage.write_prefix ?? item.storage.buffer_prefix ?? null,
    datasetUuid: item.dataset_uuid,
    datasetVersion: item.dataset_version,
  };
}

function generationOf(output) {
  return { dataset_uuid: output.datasetUuid, dataset_version: output.datasetVersion };
}

function describeParameter(value) {
  if (value instanceof Uint8Array) return { type: "bytes", value: `0x${Buffer.from(value).toString("hex")}` };
  if (value !== null && typeof value === "object" && "type" in value && "value" in value) return value;
  switch (typeof value) {
    case "boolean":
      return { type: "bool", value };
    case "string":
      return { type: "text", value };
    case "bigint":
      if (value >= -(2n ** 63n) && value < 2n ** 63n) return { type: "int64", value };
      return { type: "int256", value: value.toString() };
    case "number":
      return { type: Number.isSafeInteger(value) ? "int64" : "float64", value };
    default:
      throw new ArgumentError(`expected a boolean, number, bigint, string, bytes or {type, value}, received ${typeof value}`);
  }
}

function* split(rows) {
  let lines = [];
  let size = 0;
  for (const row of rows) {
    const line = Buffer.from(`${encode(row)}\n`);
    if (lines.length && size + line.length > BATCH_BYTES) {
      yield lines;
      lines = [];
      size = 0;
    }
    lines.push(line);
    size += line.length;
  }
  if (lines.length) yield lines;
}

function readRefusal(answer) {
  const kind = answer.status === 409 ? FencedError : CallError;
  try {
    const { code, message, details } = JSON.parse(answer.body).error;
    return new kind(answer.status, code, message, details);
  } catch {
    return new kind(answer.status, "unknown", `the call was answered with status ${answer.status}`);
  }
}
