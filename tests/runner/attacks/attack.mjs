// A hostile function in JavaScript: runs the attacks that its event names, and returns how each one ended.
//
// The event is a script, see `script.py`. An ending is `allowed`, the name of an error, or a word of the attack itself.
import fs from "node:fs";
import net from "node:net";
import dgram from "node:dgram";
import dns from "node:dns/promises";
import os from "node:os";
import { spawn, spawnSync } from "node:child_process";
import { Worker } from "node:worker_threads";

const MIB = 1 << 20;
const PATIENCE = 10000;
const kept = [];

const failure = (code) => Object.assign(new Error(code), { code });
const forever = () => new Promise(() => setInterval(() => {}, 1000));

function splitAddress(text) {
  const colon = text.lastIndexOf(":");
  return { host: text.slice(0, colon).replace(/[[\]]/g, ""), port: Number(text.slice(colon + 1)) };
}

const connect = (options) =>
  new Promise((resolve, reject) => {
    const client = net.connect({ ...options, timeout: PATIENCE }, () => resolve(client));
    client.on("error", reject);
    client.on("timeout", () => client.destroy(failure("ETIMEDOUT")));
  });

const listen = (options) =>
  new Promise((resolve, reject) => {
    const server = net.createServer().on("error", reject);
    server.listen({ ...options, backlog: 1 }, () => resolve(server));
  });

const datagram = ({ host, port }) =>
  new Promise((resolve, reject) => {
    const client = dgram.createSocket(host.includes(":") ? "udp6" : "udp4");
    client.on("error", reject);
    client.bind(() => {
      client.setBroadcast(true);
      client.send("x", port, host, (error) => (error ? reject(error) : resolve("allowed")));
    });
  });

/** The status of the reply to these bytes; `closed`: none. */
const send = (port, message) =>
  new Promise((resolve) => {
    let reply = "";
    const finish = () => resolve(reply.length >= 12 ? reply.slice(9, 12) : "closed");
    const client = net.connect({ host: "127.0.0.1", port: Number(port), allowHalfOpen: true, timeout: PATIENCE });
    client.on("connect", () => client.end(message));
    client.on("data", (part) => { reply += part.toString("latin1"); if (reply.length >= 12) client.destroy(); });
    client.on("error", finish);
    client.on("close", finish);
    client.on("timeout", () => resolve("silent"));
  });

async function connections(port, count, message, half, keep) {
  for (let index = 0; index < Number(count); index++) {
    try {
      const client = await connect({ host: "127.0.0.1", port: Number(port), allowHalfOpen: true });
      client.on("error", () => {});
      client.pause();
      if (half === "half") client.end(message);
      else client.write(message);
      if (keep === "kept") kept.push(client);
      else client.destroy();
    } catch { /* refused */ }
  }
  return "ok";
}

function execute(program, ...args) {
  const run = spawnSync(program, args, { env: {}, stdio: "ignore" });
  if (run.error) throw run.error;
  return run.status === 0 ? "allowed" : "exit";
}

const start = (program, args, options = {}) =>
  new Promise((resolve, reject) => {
    const child = spawn(program, args, { env: {}, stdio: "ignore", ...options });
    child.on("spawn", () => resolve(child));
    child.on("error", reject);
  });

const ended = (child) => new Promise((resolve) => child.on("exit", (status, signal) => resolve(signal ?? status)));

async function startMany() {
  for (;;) kept.push(await start("/bin/sleep", ["600"]));
}

async function startThreads() {
  for (;;) {
    const worker = new Worker("setInterval(() => {}, 1000)", { eval: true });
    await new Promise((resolve, reject) => worker.on("online", resolve).on("error", reject).on("exit", reject));
  }
}

function takeMemory() {
  for (;;) kept.push(Buffer.alloc(MIB, 1));
}

async function takeMemoryInChild() {
  const source = "const all = []; for (;;) all.push(Buffer.alloc(1 << 20, 1));";
  await ended(await start(process.execPath, ["--max-old-space-size=4096", "-e", source]));
  return "ok";
}

function shareMemory() {
  for (;;) kept.push(new Uint8Array(new SharedArrayBuffer(16 * MIB)).fill(1));
}

function fillDisk() {
  const file = fs.openSync("/tmp/disk", "w");
  for (;;) fs.writeSync(file, Buffer.alloc(65536, 1));
}

function findDescriptors() {
  for (let number = 3; number < 512; number++) {
    let about;
    try { about = fs.fstatSync(number); } catch { continue; }
    if (about.isDirectory() || (about.isFile() && about.size > 0) || about.isBlockDevice()) return `allowed ${number}`;
  }
  throw failure("EBADF");
}

function killAll() {
  for (const target of [-1, 0, 1, process.ppid]) {
    for (const signal of ["SIGSTOP", "SIGKILL"]) {
      try { process.kill(target, signal); } catch { /* refused */ }
    }
  }
  return "ok";
}

async function fillSockets() {
  for (;;) {
    const server = await listen({ host: "127.0.0.1", port: 0 });
    server.on("connection", (peer) => { peer.pause(); kept.push(peer); });
    const client = await connect({ host: "127.0.0.1", port: server.address().port });
    kept.push(client);
    for (let size = 0; size < 8 * MIB && client.write(Buffer.alloc(65536, 1)); size += 65536);
  }
}

const write = (number) => { for (;;) fs.writeSync(number, Buffer.alloc(65536, 120)); };

const verbs = {
  answer: () => "x".repeat(7 * MIB),
  argv: () => { const run = spawnSync("/bin/true", ["x".repeat(8 * MIB)]); if (run.error) throw run.error; },
  binding: (name) => process.binding(name),
  bind: (text) => listen(splitAddress(text)),
  busy: () => { for (;;); },
  children_memory: takeMemoryInChild,
  chmod: (path) => fs.chmodSync(path, 0o6777),
  chown: (path) => { fs.writeFileSync("/tmp/owned", "x"); fs.chownSync(path || "/tmp/owned", 0, 0); },
  close: () => { for (let number = 0; number < 512; number++) try { fs.closeSync(number); } catch { /* not open */ } for (;;); },
  connections,
  daemon: async () => { (await start("/bin/sleep", ["600"], { detached: true })).unref(); return "ok"; },
  descriptors: findDescriptors,
  disk: fillDisk,
  exec: execute,
  exit: () => process.reallyExit(3),
  files: () => { for (let count = 0; count < 300; count++) fs.openSync("/dev/null", "r"); },
  forks: startMany,
  inodes: () => { for (let number = 0; ; number++) fs.mkdirSync(`/tmp/${number}`); },
  kill: (pid, signal) => process.kill(Number(pid), Number(signal)),
  kill_all: killAll,
  link: (path) => fs.linkSync(path, "/tmp/hard-link"),
  memory: takeMemory,
  mkdir: (path) => fs.mkdirSync(path),
  module: (path) => process.dlopen({ exports: {} }, path),
  name: (host) => dns.lookup(host),
  nice: (value) => os.setPriority(Number(value)),
  query: (host) => dns.resolve4(host),
  read: (path) => fs.openSync(path, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK),
  recursion: () => { const deeper = () => deeper() + 1; return deeper(); },
  rename: (path) => fs.renameSync(path, "/tmp/renamed"),
  segv: () => process.abort(),
  send,
  setuid: (id) => process.setuid(Number(id)),
  setgid: (id) => process.setgid(Number(id)),
  setgroups: (id) => process.setgroups([Number(id)]),
  shared_memory: shareMemory,
  sleep: () => { for (const name of ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR2"]) process.on(name, () => {}); return forever(); },
  sparse: () => fs.ftruncateSync(fs.openSync("/tmp/sparse", "w"), 2 ** 40),
  stderr: () => write(2),
  stdin: () => fs.fchmodSync(0, 0o777),
  stdout: () => write(1),
  stop: async () => { const child = await start("/bin/sleep", ["600"]); child.kill("SIGSTOP"); process.kill(1, "SIGSTOP"); return ended(child); },
  symlink: (path) => { fs.rmSync("/tmp/symlink", { force: true }); fs.symlinkSync(path, "/tmp/symlink"); return fs.openSync("/tmp/symlink", "r"); },
  tcp: (text) => connect(splitAddress(text)),
  tcp_memory: fillSockets,
  threads: startThreads,
  touch: (path) => fs.utimesSync(path, 0, 0),
  truncate: (path) => fs.openSync(path, fs.constants.O_WRONLY | fs.constants.O_TRUNC),
  udp: (text) => datagram(splitAddress(text)),
  unix: (name) => connect({ path: name.startsWith("@") ? `\0${name.slice(1)}` : name }),
  unlink: (path) => fs.unlinkSync(path),
  watch: (path) => { fs.watch(path).close(); },
  write: (path) => fs.openSync(path, "a"),
  zombies: async () => { for (let index = 0; index < 30; index++) await start("/bin/true", [], { detached: true }); return "ok"; },
};
const binary = { send: 1, connections: 2 };

async function attempt(line) {
  const [verb, ...words] = line.split(" ");
  const values = words.map((word, place) => {
    const value = Buffer.from(word, "hex");
    return binary[verb] === place ? value : value.toString();
  });
  try {
    const ending = await verbs[verb](...values);
    return typeof ending === "string" ? ending : "allowed";
  } catch (error) {
    return error.info?.code ?? error.code ?? error.name;
  }
}

export async function handler(event) {
  const endings = [];
  for (const line of event.split(";")) endings.push(await attempt(line));
  return endings;
}
