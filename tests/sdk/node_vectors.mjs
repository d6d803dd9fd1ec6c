// Runs the recorded vectors against the SDK for Node: node node_vectors.mjs SDK_DIRECTORY VECTOR_DIRECTORY

import { readdirSync, readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { pathToFileURL } from "node:url";

const [sdkDirectory, directory] = process.argv.slice(2);
const { FunctionTask } = await import(pathToFileURL(`${sdkDirectory}/index.mjs`).href);
const shared = JSON.parse(readFileSync(`${directory}/task.json`));
const names = readdirSync(directory).filter((name) => name.endsWith(".json") && name !== "task.json");

const hasOnly = (value, name) => Object.keys(value).length === 1 && typeof value[name] === "string";
const encode = (value) => (value instanceof Uint8Array ? { base64: Buffer.from(value).toString("base64") } : value);

function decode(value) {
  if (Array.isArray(value)) return value.map(decode);
  if (value === null || typeof value !== "object") return value;
  if (hasOnly(value, "base64")) return Buffer.from(value.base64, "base64");
  if (hasOnly(value, "integer")) return BigInt(value.integer);
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, decode(item)]));
}

const CALLS = {
  query: (task, { sql, parameters, ...options }) => task.query(sql, parameters, options),
  query_arrow: (task, { sql, parameters, ...options }) => task.queryArrow(sql, parameters, options),
  publish: (task, { rows, ...options }) => task.publish(rows, options),
  publish_files: (task, { files, ...options }) => task.publishFiles(files, options),
  put: (task, { location, data }) => task.put(location, data),
  get: (task, { location }) => task.get(location),
  emit: (task, { partition_key: partitionKey, ...options }) => task.emit({ partitionKey, ...options }),
  heartbeat: (task) => task.heartbeat(),
  log: (task, { message, ...fields }) => task.log(message, fields),
  scratch: (task) => task.scratch,
  final_report: (task) => task.finalReport(),
};

async function run(vector) {
  let now = vector.now;
  let replies = [];
  let requests = [];
  const exchange = async (method, url, headers, body) => {
    requests.push({ method, url, headers: { ...headers }, body: body.toString() });
    if (!replies.length) throw new Error(`a request that the vector does not have: ${method} ${url}`);
    const reply = replies.shift();
    if (reply === null) throw new Error("connection reset");
    const text = reply.body ?? "";
    let data = typeof text === "string" ? Buffer.from(text) : Buffer.from(JSON.stringify(text));
    if (typeof text === "object" && hasOnly(text, "base64")) data = Buffer.from(text.base64, "base64");
    return { status: reply.status, headers: reply.headers ?? {}, body: data };
  };
  const variables = Object.entries({ ...shared.environment, ...vector.environment });
  const environment = Object.fromEntries(variables.filter(([, value]) => value !== null));
  const task = new FunctionTask({ ...shared.event, ...vector.event }, environment, exchange, () => now, async () => {});
  const steps = [];
  for (const step of vector.steps) {
    now = step.now ?? now;
    replies = (step.exchanges ?? []).map((item) => item.reply);
    const given = [...replies];
    requests = [];
    const outcome = {};
    let written = "";
    const write = process.stderr.write;
    process.stderr.write = (text) => ((written += text), true);
    try {
      outcome.result = encode((await CALLS[step.call](task, decode(step.arguments ?? {}))) ?? null);
    } catch (error) {
      const fields = { type: error.name, status: error.status, code: error.code, output_location: error.outputLocation };
      outcome.error = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
    } finally {
      process.stderr.write = write;
    }
    if (written) outcome.stderr = written;
    const performed = Object.fromEntries(Object.entries(step).filter(([name]) => ["now", "call", "arguments"].includes(name)));
    if (requests.length) {
      performed.exchanges = requests.map((request, index) => ({ request, reply: given[index] }));
    }
    steps.push({ ...performed, ...outcome });
  }
  return steps;
}

let failures = 0;
for (const name of names) {
  const vector = JSON.parse(readFileSync(`${directory}/${name}`));
  const steps = await run(vector);
  steps.forEach((step, index) => {
    if (isDeepStrictEqual(JSON.parse(JSON.stringify(step)), vector.steps[index])) return;
    failures++;
    console.log(`${name}, step ${index}\n  got      ${JSON.stringify(step)}\n  expected ${JSON.stringify(vector.steps[index])}`);
  });
}
console.log(`${names.length} vectors, ${failures} failures`);
process.exit(failures ? 1 : 0);
