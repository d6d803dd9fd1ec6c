// The runtime client of Node functions: fetches the event, calls the handler, answers.
//
// Started inside of a sandbox, with nothing but Node itself. It keeps what it needs before the bundle is loaded, so that
// no change of a global by the bundle takes its place.

import http from "node:http";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const BUNDLE = "/var/task";
const PREFIX = "/2018-06-01/runtime";
const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(":");
const exit = process.exit.bind(process);
const { parse, stringify } = JSON;
const request = http.request.bind(http);

function exchange(method, path, body = "") {
  return new Promise((resolve, reject) => {
    const headers = { "content-length": Buffer.byteLength(body) };
    const call = request({ host, port, method, path: PREFIX + path, headers, agent: false }, (reply) => {
      const parts = [];
      reply.on("data", (part) => parts.push(part));
      reply.on("end", () => resolve({ headers: reply.headers, body: Buffer.concat(parts).toString() }));
    });
    call.on("error", reject);
    call.end(body);
  });
}

function describe(error) {
  const isError = error instanceof Error;
  const frames = isError ? String(error.stack ?? "").split("\n").filter((line) => line.includes(BUNDLE + "/")) : [];
  return stringify({
    errorType: isError ? error.name : typeof error,
    errorMessage: String(isError ? error.message : error).slice(0, 10000),
    stackTrace: frames.slice(0, 50),
    retryable: !(isError && error.name === "NonRetryable"),
  });
}

async function loadHandler(entrypoint) {
  const dot = entrypoint.lastIndexOf(".");
  const base = `${BUNDLE}/${entrypoint.slice(0, dot)}`;
  const name = entrypoint.slice(dot + 1);
  const file = [".js", ".mjs", ".cjs"].map((ending) => base + ending).find((path) => existsSync(path));
  if (file === undefined) throw new Error(`expected ${entrypoint.slice(0, dot)}.js, .mjs or .cjs in the bundle`);
  let module;
  if (file.endsWith(".cjs")) module = createRequire(import.meta.url)(file);
  else module = await import(pathToFileURL(file).href);
  const handler = module[name] ?? module.default?.[name];
  if (typeof handler !== "function") throw new Error(`expected a function ${name} in ${file.slice(BUNDLE.length + 1)}`);
  return handler;
}

function callHandler(handler, event, context) {
  if (handler.length < 3) return handler(event, context);
  return new Promise((resolve, reject) => {
    handler(event, context, (error, value) => (error ? reject(error) : resolve(value)));
  });
}

async function fail(path, error) {
  try {
    console.error(error);
    await exchange("POST", path, describe(error));
  } finally {
    exit(1); // also if nothing can be reported: a rejection here would come back as another error
  }
}

let failurePath = "/init/error";
process.on("uncaughtException", (error) => fail(failurePath, error));
process.on("unhandledRejection", (error) => fail(failurePath, error));

let handler;
try {
  handler = await loadHandler(process.env._HANDLER);
} catch (error) {
  await fail(failurePath, error);
}
const { headers, body } = await exchange("GET", "/invocation/next");
const requestPath = `/invocation/${headers["lambda-runtime-aws-request-id"]}`;
failurePath = `${requestPath}/error`;
const deadline = Number(headers["lambda-runtime-deadline-ms"]);
const context = {
  awsRequestId: headers["lambda-runtime-aws-request-id"],
  invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
  functionName: process.env.AWS_LAMBDA_FUNCTION_NAME ?? "",
  functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION ?? "",
  memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE ?? "",
  getRemainingTimeInMillis: () => Math.max(0, deadline - Date.now()),
};
try {
  const value = await callHandler(handler, parse(body), context);
  await exchange("POST", `${requestPath}/response`, stringify(value === undefined ? null : value));
  exit(0);
} catch (error) {
  await fail(failurePath, error);
}
