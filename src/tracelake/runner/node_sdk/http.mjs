// HTTP of the SDK: one exchange, and what is repeated.

import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";

const MILLISECONDS = 330_000; // a query of a task may take 300 s
const TRIES = 6;
const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 5000;
const AWS = /\.amazonaws\.com(\.cn)?$/;
const REPEATED = new Set([500, 502, 503, 504]); // all calls of the SDK are idempotent

/** Exchanges over the network, each on a connection of its own. */
export function openNetwork(caFile) {
  const ca = caFile ? readFileSync(caFile) : undefined;
  return (method, url, headers, body) =>
    new Promise((resolve, reject) => {
      const place = new URL(url);
      const client = place.protocol === "https:" ? https : http;
      const options = {
        method,
        host: place.hostname,
        port: place.port || undefined,
        path: url.slice(place.origin.length), // as it is written: a URL may spell a path in another way
        headers: { ...headers, "content-length": body.length },
        timeout: MILLISECONDS,
        agent: false,
        ca: AWS.test(place.hostname) ? undefined : ca, // the platform's own CA does not verify AWS itself
      };
      const call = client.request(options, (reply) => {
        const parts = [];
        reply.on("data", (part) => parts.push(part));
        reply.on("error", reject);
        reply.on("end", () =>
          resolve({ status: reply.statusCode, headers: reply.headers, body: Buffer.concat(parts) }),
        );
      });
      call.on("timeout", () => call.destroy(new Error("no answer in time")));
      call.on("error", reject);
      call.end(body);
    });
}

/** Repeats the call while nobody answers or a store is away. Headers are made anew, since signatures have a time. */
export async function exchangePatiently(exchange, makeHeaders, method, url, body, sleep) {
  let wait = FIRST_WAIT_MS;
  for (let tries = 1; ; tries++) {
    try {
      const answer = await exchange(method, url, makeHeaders(), body);
      if (!REPEATED.has(answer.status) || tries === TRIES) return answer;
    } catch (error) {
      if (tries === TRIES) throw error;
    }
    await sleep(wait);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}
