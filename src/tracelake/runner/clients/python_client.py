"""The runtime client of Python functions: fetches the event, calls the handler, answers.

Started by `python -I -S` inside of a sandbox, with nothing but the standard library. It imports all that it needs
before the bundle is on the path, so that no module of a bundle takes the place of one of its own. Every run pays for
every import: what this client can do without (`traceback`, `typing`, `contextlib`) takes longer to import than most
handlers take to run.
"""

from __future__ import annotations

import sys

_AT_START = frozenset(sys.modules)
"""What the interpreter itself has imported: a bundle cannot replace it on any Python."""

import _socket  # noqa: E402 - `socket` imports much more, for what is not used here
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from time import time  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn

_BUNDLE = "/var/task"
_LAYER = "/opt/python"
"""Where AWS Lambda has the modules of layers; the SDK is one."""
_PREFIX = "/2018-06-01/runtime"
_MOST_FRAMES = 50
_CHUNK = 1 << 20


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
    connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        connection.connect((host, int(port)))
        connection.sendall(head.encode("ascii") + body)
        reply = bytearray()
        while (head_end := reply.find(b"\r\n\r\n")) < 0:
            reply += _receive(connection)
        headers = {}
        for line in reply[:head_end].decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body_start = head_end + 4
        body_end = body_start + int(headers["content-length"])
        while len(reply) < body_end:
            reply += _receive(connection)
        return headers, bytes(reply[body_start:body_end])
    finally:
        connection.close()


def _receive(connection: _socket.socket) -> bytes:
    chunk = connection.recv(_CHUNK)
    if not chunk:
        raise ConnectionError("the Runtime API has closed the connection")
    return chunk


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
    try:
        report["errorMessage"] = str(error)[:10_000]
    except Exception:  # what an exception says of itself is the user's code too
        report["errorMessage"] = "the exception has no text"
    report["stackTrace"] = _format_frames(error.__traceback__)
    return json.dumps(report).encode("utf-8", "replace")


def _format_frames(trace: TracebackType | None) -> list[str]:
    """The last frames in files of the bundle, as `traceback` writes them."""
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(f"{_BUNDLE}/"):
            places.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return [
        f'  File "{file}", line {line}, in {name}\n{_read_line(file, line)}'
        for file, line, name in places[-_MOST_FRAMES:]
    ]


def _read_line(file: str, number: int) -> str:
    """Empty if there is no such line."""
    try:
        with open(file, "rb") as source:  # noqa: PTH123 - `pathlib` is one of the imports to do without
            for _ in range(number - 1):
                source.readline()
            text = source.readline().decode("utf-8", "replace").strip()
    except Exception:
        return ""
    return f"    {text}\n" if text else ""


def _print(error: BaseException) -> None:
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    except BaseException:  # newer Pythons import `traceback` for it, which may be the bundle's
        os.write(2, b"the exception could not be printed\n")
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: S112 - a stream that the handler has closed or replaced has nothing for us
            continue


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
