"""Requests to the two addresses of a sandbox, byte by byte, and the grant of the attempt that sends them."""

import json
from base64 import urlsafe_b64encode
from typing import Any
from uuid import UUID

from tracelake.runner.inside import PORTS
from tracelake.runner.object_paths import ObjectGrant

TASK = UUID("01890000-0000-7000-8000-000000000001")
OTHER = UUID("01890000-0000-7000-8000-000000000002")
GRANT = ObjectGrant(read=["s3://data/datasets/a/1/"], write=["s3://data/staging/a/1/t/1/", "s3://scratch/t/"])
OWN = f"127.0.0.1:{PORTS[1]}"
RUNTIME = "/2018-06-01/runtime"


def make_token(task_id: UUID = TASK, attempt: int = 1, expires: int | None = None) -> str:
    claims: dict[str, Any] = {"task_id": str(task_id), "attempt": attempt}
    payload = json.dumps(claims if expires is None else claims | {"exp": expires}).encode()
    return f"e30.{urlsafe_b64encode(payload).decode().rstrip('=')}.signature"


def call(path: str = "/v1/task/heartbeat", *, token: str | None = None, body: Any = None, more: str = "") -> bytes:
    data = json.dumps({"task_id": str(TASK), "attempt": 1} if body is None else body).encode()
    header = f"x-trace-task-capability: {make_token() if token is None else token}\r\n"
    head = f"POST {path} HTTP/1.1\r\nhost: {OWN}\r\n{header}content-length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


def get(target: str, *, method: str = "GET", host: str = OWN, more: str = "") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n".encode()


def post(path: str, body: bytes = b'"forged"', *, more: str = "") -> bytes:
    """To the Runtime API."""
    head = f"POST {RUNTIME}{path} HTTP/1.1\r\nhost: 127.0.0.1:{PORTS[0]}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


NEXT = f"GET {RUNTIME}/invocation/next HTTP/1.1\r\n\r\n".encode()
PARTIAL = b"GET /scratch/t/x HTTP/1.1\r\nx-header: "
