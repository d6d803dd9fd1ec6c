"""JSON-RPC calls and the forms that their answers have."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tracelake.spark.evm.errors import AnswerError

T = TypeVar("T")
Call = tuple[str, list[Any]]


class RpcErrorBody(msgspec.Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""


class RpcAnswer(msgspec.Struct, Generic[T], frozen=True, gc=False):
    id: int | str | float | None = None
    result: T | None = None
    error: RpcErrorBody | None = None


class AnswerDecoder:
    """Decodes the answers to calls whose results are all of one type: a batch has a list, a single call an object."""

    __slots__ = ("_one", "decode")

    def __init__(self, kind: Any) -> None:
        self.decode = msgspec.json.Decoder(list[RpcAnswer[kind]]).decode
        self._one = msgspec.json.Decoder(RpcAnswer[kind])

    def decode_single(self, raw: bytes) -> list[RpcAnswer[Any]]:
        """An object, though some proxies wrap it in a list."""
        return self.decode(raw) if raw.lstrip()[:1] == b"[" else [self._one.decode(raw)]


def answers_of(kind: Any) -> AnswerDecoder:
    return AnswerDecoder(kind)


class CallSet:
    """Calls to one node with the results so far: what was answered is not asked again."""

    __slots__ = ("calls", "open", "results")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.results: list[Any] = [None] * len(calls)
        self.open = list(range(len(calls)))
        """Places without an answer, in order."""

    def close(self, places: Sequence[int], answers: dict[int, Any]) -> None:
        """`places`: the first open ones, that were asked for; `answers`: their results, as far as there are any."""
        for place, result in answers.items():
            self.results[place] = result
        self.open[: len(places)] = [place for place in places if place not in answers]

    def reopen_nulls(self) -> None:
        """Null stands for what a node does not have yet: it is asked again."""
        self.open = [place for place, result in enumerate(self.results) if result is None]


def quantity(text: str, host: str) -> int:
    try:
        if text[:2] == "0x" and "_" not in text:
            return int(text, 16)
    except ValueError:
        pass
    raise AnswerError("not a hex quantity: expected a value like 0x1b4, received another text", host=host)
