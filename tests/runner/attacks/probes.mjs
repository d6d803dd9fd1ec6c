// Attempts of hostile JavaScript, run inside of a function's sandbox. Returns how each one ended.
import fs from "node:fs";
import net from "node:net";
import dgram from "node:dgram";
import dns from "node:dns/promises";
import { spawnSync } from "node:child_process";

async function attempt(action) {
  try {
    return `allowed: ${String(await action())}`.slice(0, 200);
  } catch (error) {
    return error.code ?? error.name;
  }
}

const connect = (options) =>
  new Promise((resolve, reject) => {
    const client = net.connect({ ...options, timeout: 3000 }, () => resolve("connected"));
    client.on("error", reject);
    client.on("timeout", () => client.destroy(new Error("timeout")));
  });

const datagram = () =>
  new Promise((resolve, reject) => {
    const client = dgram.createSocket("udp4");
    client.send("x", 53, "192.0.2.1", (error) => (error ? reject(error) : resolve("sent")));
  });

export async function handler(event) {
  const unreadable = ["/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/sys/kernel", "/dev/mem", "/run", event.secret];
  const unwritable = ["/var/task/x", "/var/runtime/x", "/usr/x", "/x"];
  const attempts = {
    "another machine": () => connect({ host: "192.0.2.1", port: 443 }),
    ipv6: () => connect({ host: "2001:db8::1", port: 443 }),
    datagram,
    name: () => dns.lookup("example.com"),
    fetch: async () => (await fetch("http://192.0.2.1/")).status,
    "socket file": () => connect({ path: event.socket_file }),
    "abstract socket": () => connect({ path: `\0${event.abstract}` }),
    root: () => process.setuid(0),
    "signal to the runner": () => process.kill(event.pid, "SIGKILL"),
    sudo: () => {
      const run = spawnSync("/usr/bin/su", ["-c", "id"], { env: {} });
      if (run.status !== 0) throw Object.assign(new Error(), { code: "EPERM" });
    },
    "runtime port": () => new Promise((resolve, reject) => net.createServer().on("error", reject).listen(9001, "127.0.0.1", resolve)),
  };
  for (const path of unreadable) attempts[`read ${path}`] = () => fs.readFileSync(path);
  for (const path of unwritable) attempts[`write ${path}`] = () => fs.writeFileSync(path, "x");
  for (const port of event.ports) attempts[`port ${port}`] = () => connect({ host: "127.0.0.1", port });
  const results = {};
  for (const [name, action] of Object.entries(attempts)) results[name] = await attempt(action);
  return { results, environment: Object.keys(process.env).sort(), parent: process.ppid, pid: process.pid };
}
