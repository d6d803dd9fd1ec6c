"""Asks every port and socket of a server in ways that its own clients use, as another user of the machine.

Run as a program: it reads a `Probe` as JSON, loads what it needs, gives up its identity for good, and prints the first
bytes that each port answered to each attempt. An attempt that was refused has no bytes.
"""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

NOBODY = 65534
Answers: TypeAlias = dict[str, dict[str, str]]
"""By port or socket, by attempt."""

_BODY = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n"
_HTTP = {
    "status": ("GET", "/dir/status", ""),
    "assign": ("GET", "/dir/assign", ""),
    "submit": ("POST", "/submit", "forged"),
    "read needle": ("GET", "/1,01637037d6", ""),
    "write needle": ("POST", "/1,01637037d6", "forged"),
    "delete needle": ("DELETE", "/1,01637037d6", ""),
    "list": ("GET", "/buckets/", ""),
    "write": ("PUT", "/buckets/bucket-one/datasets/forged", "forged"),
    "create user": ("POST", "/", "Action=CreateUser&UserName=intruder&Version=2010-05-08"),
    "create key": ("POST", "/", "Action=CreateAccessKey&UserName=platform&Version=2010-05-08"),
    "assume role": ("POST", "/", "Action=AssumeRole&RoleArn=arn:aws:iam::000000000000:role/x&RoleSessionName=x"),
}
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a gRPC client begins: its preface and its settings, which a server answers with its own."""


@dataclass(frozen=True)
class Probe:
    ports: list[int]
    sockets: list[str] = field(default_factory=list)
    uid: int | None = None
    certificates: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By name: files with a certificate and its key, which the caller has."""

    def run(self) -> Answers:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(asdict(self)), capture_output=True, text=True, check=True
        )
        answers: Answers = json.loads(done.stdout)
        return answers


def list_listeners(pid: int) -> tuple[list[int], list[str]]:
    """The TCP ports and the unix sockets that a process listens on, as the kernel knows them."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                ports.append(int(columns[1].rpartition(":")[2], 16))
    paths = set()
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "00010000" and columns[6] in inodes:  # it accepts connections
            paths.add(columns[7])
    return sorted(ports), sorted(paths)


def _requests() -> dict[str, bytes]:
    requests = {"gRPC": _HTTP2}
    for name, (method, path, body) in _HTTP.items():
        headers = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        requests[name] = f"{headers}{_BODY.format(length=len(body)) if body else ''}\r\n{body}".encode()
    return requests


def _contexts(probe: Probe, protocol: str) -> dict[str, ssl.SSLContext | None]:
    contexts: dict[str, ssl.SSLContext | None] = {"plain": None, "TLS": _context(protocol)}
    for name, (certificate, key) in probe.certificates.items():
        context = _context(protocol)
        context.load_cert_chain(certificate, key)
        contexts[name] = context
    return contexts


def _context(protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context


def _ask(address: int | str, request: bytes, context: ssl.SSLContext | None) -> str:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    plain = socket.socket(family)
    plain.settimeout(10.0)
    try:
        plain.connect(address if isinstance(address, str) else ("127.0.0.1", address))
        with plain if context is None else context.wrap_socket(plain) as connection:
            connection.sendall(request)
            return connection.recv(400).decode("latin-1")
    except TimeoutError:
        return "no answer and no refusal"
    except OSError:
        return ""
    finally:
        plain.close()


def _main() -> None:
    probe = Probe(**json.load(sys.stdin))
    contexts = {protocol: _contexts(probe, protocol) for protocol in ("h2", "http/1.1")}
    if probe.uid is not None:
        os.setgroups([])
        os.setresgid(probe.uid, probe.uid, probe.uid)
        os.setresuid(probe.uid, probe.uid, probe.uid)
    answers: Answers = {}
    addresses: list[int | str] = [*probe.ports, *probe.sockets]
    for address in addresses:
        for name, request in _requests().items():
            for way, context in contexts["h2" if name == "gRPC" else "http/1.1"].items():
                answers.setdefault(str(address), {})[f"{name}, {way}"] = _ask(address, request, context)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    _main()
