"""JSON-RPC calls and the forms that their answers have."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

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


REVERTED = object()
"""The result of a call that failed in the contract: an answer, and no fault of the node."""


class AnswerDecoder:
    """Decodes the answers to calls whose results are all of one type: a batch has a list, a single call an object."""

    __slots__ = ("_list", "_one")

    def __init__(self, kind: Any) -> None:
        self._list = msgspec.json.Decoder(list[RpcAnswer[kind]])
        self._one = msgspec.json.Decoder(RpcAnswer[kind])

    def decode(self, raw: bytes | bytearray, count: int = 1) -> list[RpcAnswer[Any]]:  # noqa: ARG002
        """`count`: how many calls it answers."""
        return self._list.decode(raw)

    def decode_single(self, raw: bytes | bytearray) -> list[RpcAnswer[Any]]:
        """An object, though some proxies wrap it in a list."""
        return self.decode(raw) if raw.lstrip()[:1] == b"[" else [self._one.decode(raw)]


class PackingDecoder(AnswerDecoder):
    """Makes something smaller of each result that is large, as soon as it is decoded: the objects of one fit into the
    processor's caches, those of a batch do not, and the next result takes their memory."""

    __slots__ = ("_least", "_packed_list", "_packed_one")

    def __init__(self, kind: Any, pack: Callable[[Any], Any], *, least: int = 32 * 1024) -> None:
        """`least`: from so many bytes on, on the average of an answer, it is worth while."""
        super().__init__(kind)
        self._least = least
        packed = _packed_answer(kind, pack)
        self._packed_list = msgspec.json.Decoder(list[packed])  # type: ignore[valid-type]
        self._packed_one = msgspec.json.Decoder(packed)

    def decode(self, raw: bytes | bytearray, count: int = 1) -> list[RpcAnswer[Any]]:
        return self._packed_list.decode(raw) if len(raw) >= self._least * count else super().decode(raw)

    def decode_single(self, raw: bytes | bytearray) -> list[RpcAnswer[Any]]:
        if raw.lstrip()[:1] == b"[":
            return self.decode(raw)
        return [self._packed_one.decode(raw)] if len(raw) >= self._least else super().decode_single(raw)


def _packed_answer(kind: Any, pack: Callable[[Any], Any]) -> type[RpcAnswer[Any]]:
    """What msgspec calls when it has made all of an answer packs its result."""

    def pack_result(answer: RpcAnswer[Any]) -> None:
        if answer.result is not None:
            msgspec.structs.force_setattr(answer, "result", pack(answer.result))

    fields = [("result", kind | None, None)]
    methods = {"__post_init__": pack_result}
    answer_type = msgspec.defstruct(
        "PackedAnswer", fields, bases=(RpcAnswer,), namespace=methods, frozen=True, gc=False
    )
    return cast("type[RpcAnswer[Any]]", answer_type)


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
