"""Runs a recorded vector against the Python SDK. `python -m tests.sdk.vectors` records all of them again."""

import base64
import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelake.sdk.function import FunctionTask
from tracelake.sdk.http import HttpAnswer

DIRECTORY = Path(__file__).parents[2] / "sdk/vectors"
SHARED = "task.json"


def vector_files() -> list[Path]:
    return sorted(path for path in DIRECTORY.glob("*.json") if path.name != SHARED)


def encode(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def decode(value: Any) -> Any:
    match value:
        case {"base64": str(text), **rest} if not rest:
            return base64.b64decode(text)
        case {"integer": str(text), **rest} if not rest:
            return int(text)
        case list():
            return [decode(item) for item in value]
        case dict():
            return {name: decode(item) for name, item in value.items()}
        case _:
            return value


class RecordedExchange:
    """Answers requests in the order of the vector, and keeps what was asked."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.requests: list[dict[str, Any]] = []

    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        self.requests.append({"method": method, "url": url, "headers": dict(headers), "body": body.decode()})
        assert self.replies, f"a request that the vector does not have: {self.requests[-1]}"
        reply = self.replies.pop(0)
        if reply is None:
            raise ConnectionResetError
        text = reply.get("body", "")
        data = decode(text) if isinstance(text, dict) and set(text) == {"base64"} else _text(text)
        return HttpAnswer(reply["status"], reply.get("headers", {}), data)


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def run(vector: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps as the SDK performs them."""
    shared = json.loads((DIRECTORY / SHARED).read_text())
    now = vector["now"]
    exchange = RecordedExchange()
    variables = shared["environment"] | vector.get("environment", {})
    environment = {name: value for name, value in variables.items() if value is not None}
    task = FunctionTask(
        shared["event"] | vector.get("event", {}), environment, exchange, lambda: now, lambda _seconds: None
    )
    steps = []
    for step in vector["steps"]:
        now = step.get("now", now)
        exchange.replies = [item["reply"] for item in step.get("exchanges", [])]
        replies = list(exchange.replies)
        exchange.requests = []
        outcome: dict[str, Any] = {}
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            try:
                member = getattr(task, step["call"])
                outcome["result"] = encode(member(**decode(step.get("arguments", {}))) if callable(member) else member)
            except AssertionError:
                raise
            except Exception as error:
                names = ("status", "code", "output_location")
                fields = {name: getattr(error, name) for name in names if hasattr(error, name)}
                outcome["error"] = {"type": type(error).__name__} | fields
        if errors.getvalue():
            outcome["stderr"] = errors.getvalue()
        assert not exchange.replies, f"{step['call']} made fewer requests than the vector has"
        kept = {name: step[name] for name in ("now", "call", "arguments") if name in step}
        if exchange.requests:
            pairs = zip(exchange.requests, replies, strict=True)
            kept["exchanges"] = [{"request": request, "reply": reply} for request, reply in pairs]
        steps.append(kept | outcome)
    return steps


if __name__ == "__main__":
    for path in vector_files():
        content = json.loads(path.read_text())
        content["steps"] = run(content)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
