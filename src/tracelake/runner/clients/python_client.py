"""The runtime client of Python functions: fetches the event, calls the handler, answers.

Started by `python -I -S` inside of a sandbox, with nothing but the standard library. It imports all that it needs
before the bundle is on the path, so that no module of a bundle takes the place of one of its own.
"""

import sys

_AT_START = frozenset(sys.modules)
"""What the interpreter itself has imported: a bundle cannot replace it on any Python."""

import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from contextlib import suppress  # noqa: E402
from time import time  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

_BUNDLE = "/var/task"
_LAYER = "/opt/python"
"""Where AWS Lambda has the modules of layers; the SDK is one."""
_PREFIX = "/2018-06-01/runtime"


class LambdaContext:
    """What a handler may ask of its invocation; the names are AWS Lambda's."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.aws_request_id = headers["lambda-runtime-aws-request-id"]
        self.invoked_function_arn = headers.get("lambda-runtime-invoked-function-arn", "")
        self.function_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
        self.function_version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", "")
        self.memory_limit_in_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
        self._deadline_ms = int(headers.get("lambda-runtime-deadline-ms", "0"))

    def get_remaining_time_in_millis(self) -> int:
        return max(0, self._deadline_ms - int(time() * 1000))


def _exchange(method: str, path: str, body: bytes = b"") -> tuple[dict[str, str], bytes]:
    host, _, port = os.environ["AWS_LAMBDA_RUNTIME_API"].partition(":")
    head = f"{method} {_PREFIX}{path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode("ascii") + body)
        with connection.makefile("rb") as reader:
            reader.readline()
            headers = {}
            while line := reader.readline().decode("latin-1").strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            return headers, reader.read(int(headers["content-length"]))


def _load_handler(entrypoint: str) -> Callable[[Any, LambdaContext], Any]:
    module_name, _, function_name = entrypoint.rpartition(".")
    module_name = module_name.replace("/", ".")
    # Whoever imports a name of the bundle means the bundle's file; this client keeps what it has.
    own_names = {entry.name.partition(".")[0] for entry in os.scandir(_BUNDLE)} - _AT_START
    own_names.add(module_name.split(".")[0])
    for name in [item for item in sys.modules if item.split(".")[0] in own_names]:
        del sys.modules[name]
    sys.path.insert(0, _BUNDLE)
    sys.path.append(_LAYER)
    handler: Callable[[Any, LambdaContext], Any] = getattr(importlib.import_module(module_name), function_name)
    return handler


def _describe(error: BaseException) -> bytes:
    report: dict[str, Any] = {"errorType": type(error).__name__, "errorMessage": "", "stackTrace": []}
    report["retryable"] = all(kind.__name__ != "NonRetryable" for kind in type(error).__mro__)
    with suppress(Exception):  # what an exception says of itself is the user's code too
        report["errorMessage"] = str(error)[:10_000]
        frames = [line for line in traceback.format_tb(error.__traceback__) if f'File "{_BUNDLE}/' in line]
        report["stackTrace"] = frames[-50:]
    return json.dumps(report).encode("utf-8", "replace")


def _print(error: BaseException) -> None:
    with suppress(Exception):
        traceback.print_exception(error)
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def main() -> NoReturn:
    exchange, exit_now = _exchange, os._exit  # a handler may replace names of modules
    try:
        handler = _load_handler(os.environ["_HANDLER"])
    except BaseException as error:
        _print(error)
        exchange("POST", "/init/error", _describe(error))
        exit_now(1)
    headers, body = exchange("GET", "/invocation/next")
    request_path = f"/invocation/{headers['lambda-runtime-aws-request-id']}"
    try:
        result = handler(json.loads(body), LambdaContext(headers))
        response = json.dumps(result).encode()
    except BaseException as error:
        _print(error)
        exchange("POST", f"{request_path}/error", _describe(error))
        exit_now(1)
    _flush()
    exchange("POST", f"{request_path}/response", response)
    exit_now(0)


main()
