// Scoped storage: whole objects of the object store, with credentials of the attempt and AWS Signature Version 4.

import { createHash, createHmac } from "node:crypto";

import { ArgumentError, CallError } from "./errors.mjs";
import { exchangePatiently } from "./http.mjs";

const ALGORITHM = "AWS4-HMAC-SHA256";
const RENEW_SECONDS = 300; // credentials with less life than this are not used any more

export const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const hmac = (key, text) => createHmac("sha256", key).update(text).digest();

export class ScopedStorage {
  #ask;
  #exchange;
  #endpoint;
  #clock;
  #sleep;
  #sets = [];

  /** `ask` calls /v1/task/credentials for one location; `endpoint` takes the place of the one in its reply. */
  constructor(ask, exchange, endpoint, clock, sleep) {
    this.#ask = ask;
    this.#exchange = exchange;
    this.#endpoint = endpoint;
    this.#clock = clock;
    this.#sleep = sleep;
  }

  async get(location) {
    return (await this.#call("GET", location, Buffer.alloc(0))).body;
  }

  async put(location, data) {
    await this.#call("PUT", location, data);
  }

  async #call(method, location, body) {
    const { bucket, key } = splitLocation(location);
    const keys = await this.#find(method, location);
    const path = `/${bucket}/${key.split("/").map(quote).join("/")}`;
    const url = keys.endpoint.replace(/\/+$/, "") + path;
    const host = new URL(url).host;
    const sign = () => this.#sign(method, host, path, body, keys);
    const answer = await exchangePatiently(this.#exchange, sign, method, url, body, this.#sleep);
    if (answer.status !== 200 && answer.status !== 204) {
      const code = answer.status === 404 ? "object_not_found" : "object_store_refused";
      throw new CallError(answer.status, code, `${method} of an object was answered with status ${answer.status}.`);
    }
    return answer;
  }

  async #find(method, location) {
    const limit = this.#clock() + RENEW_SECONDS;
    this.#sets = this.#sets.filter((keys) => keys.end > limit);
    if (!this.#sets.some((keys) => opens(keys, method, location))) {
      const reply = await this.#ask(location);
      const endpoint = this.#endpoint || reply.endpoint || `https://s3.${reply.region}.amazonaws.com`;
      for (const keys of reply.credentials) {
        this.#sets.push({ ...keys, end: Date.parse(keys.expires_at) / 1000, region: reply.region, endpoint });
      }
    }
    const matching = this.#sets.find((keys) => opens(keys, method, location));
    if (matching === undefined) throw new CallError(403, "prefix_forbidden", "The task may not write this location.");
    return matching;
  }

  #sign(method, host, path, body, keys) {
    const moment = `${new Date(this.#clock() * 1000).toISOString().replace(/[-:]|\.[0-9]+/g, "")}`;
    const scope = [moment.slice(0, 8), keys.region, "s3", "aws4_request"];
    const headers = {
      host,
      "x-amz-content-sha256": sha256(body),
      "x-amz-date": moment,
      "x-amz-security-token": keys.session_token,
    };
    const names = Object.keys(headers).sort();
    const lines = names.map((name) => `${name}:${headers[name]}`);
    const signed = names.join(";");
    const request = [method, path, "", ...lines, "", signed, headers["x-amz-content-sha256"]].join("\n");
    const text = [ALGORITHM, moment, scope.join("/"), sha256(request)].join("\n");
    const key = scope.reduce(hmac, `AWS4${keys.secret_access_key}`);
    const credential = `${keys.access_key_id}/${scope.join("/")}`;
    const signature = hmac(key, text).toString("hex");
    headers.authorization = `${ALGORITHM} Credential=${credential}, SignedHeaders=${signed}, Signature=${signature}`;
    return headers;
  }
}

/** Bucket and key. The Dispatcher and the store check the rest. */
export function splitLocation(location) {
  const [, bucket, key] = /^s3:\/\/([^/]+)\/(.*)$/s.exec(location) ?? [];
  if (key === undefined || key.split("/").some((part) => ["", ".", ".."].includes(part))) {
    throw new ArgumentError(`expected an address like s3://bucket/key, received ${JSON.stringify(location)}`);
  }
  return { bucket, key };
}

function quote(segment) {
  return encodeURIComponent(segment).replace(/[!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`);
}

function opens(keys, method, location) {
  const prefixes = method === "PUT" ? keys.write_prefixes : [...keys.write_prefixes, ...keys.read_prefixes];
  return prefixes.some((prefix) => location.startsWith(prefix));
}
