"""Finds a running stack by `HOME/stack.json`, which exists from when the stack is ready until it stops."""

import os
from pathlib import Path

import msgspec

from tracelake.client.credentials import FileCredential
from tracelake.client.http import HttpClient
from tracelake.client.internal import InternalClient

STACK_VERSION = 1


class NoStackError(Exception):
    """No stack is running; the message tells how to start one."""


class ObjectStoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the object store; the Dispatcher hands out its keys."""

    endpoint: str | None
    """None: S3 of AWS in `region`."""
    region: str
    buckets: dict[str, str]
    """`datasets`, `scratch`, `bundles`."""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `stack.json`."""

    version: int = STACK_VERSION
    pid: int
    home: str
    public_url: str
    task_url: str
    internal_url: str
    ca_file: str
    worker_token_file: str
    service_token_file: str
    admin_token_file: str
    queue_dsn_file: str
    data_dsn_file: str
    object_store: ObjectStoreAddress
    query_url: str | None = None
    """The Query Service for people; None: the stack has none."""
    query_task_url: str | None = None
    """The Query Service for tasks."""

    def internal_client(self) -> InternalClient:
        return InternalClient(
            HttpClient(self.internal_url, self.ca_file),
            worker=FileCredential(Path(self.worker_token_file)),
            service=FileCredential(Path(self.service_token_file)),
        )


def default_home() -> Path:
    return Path(os.environ.get("TRACE_HOME") or "~/.trace").expanduser()


def find_stack(home: Path | None = None) -> Stack:
    """The running stack of a home; raises NoStackError."""
    root = home or default_home()
    try:
        return msgspec.json.decode((root / "stack.json").read_bytes(), type=Stack)
    except FileNotFoundError:
        raise NoStackError(f"no stack runs in {root}; start one with `trace up --home {root}`") from None
    except (OSError, msgspec.MsgspecError):
        raise NoStackError(f"{root}/stack.json cannot be read; see `trace status --home {root}`") from None
