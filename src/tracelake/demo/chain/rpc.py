"""JSON-RPC 2.0 over bytes: what came in, which method it asks for, and the bytes to answer with.

Whatever comes in, what goes out is a valid JSON-RPC answer, or nothing where only notifications came in. Results are
bytes already; they are joined, not encoded. An id is given back as the very bytes that came.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000
RESPONSE_TOO_LARGE = -32003
LIMIT_EXCEEDED = -32005

MAX_BATCH = 1000
MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Calls of a batch beyond it are refused one by one, so that the others keep their answers."""

Method = Callable[[list[Any]], bytes]


class ChainRpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Call(msgspec.Struct, frozen=True, gc=False):
    method: str
    jsonrpc: str
    id: msgspec.Raw = msgspec.Raw()  # empty: none was given, and no answer is wanted
    params: list[Any] | dict[str, Any] | None = None


_calls = msgspec.json.Decoder(list[_Call])
_call = msgspec.json.Decoder(_Call)
_parts = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()


class Rpc:
    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods

    def answer(self, body: bytes) -> bytes | None:
        if not body.isascii() and not _is_text(body):  # an id is passed over unread, and comes back as it is
            return _error(b"null", PARSE_ERROR, "The body is not valid UTF-8.")
        if body.lstrip(b" \t\r\n")[:1] == b"[":
            return self._answer_batch(body)
        try:
            return self._answer_call(_call.decode(body))
        except (msgspec.MsgspecError, RecursionError):
            return self._refuse(body)

    def _answer_batch(self, body: bytes) -> bytes | None:
        try:
            parts: list[Any] = _calls.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            try:
                parts = _parts.decode(body)
                _anything.decode(body)
            except (msgspec.MsgspecError, RecursionError):
                return _error(b"null", PARSE_ERROR, "The body is not valid JSON.")
        if not parts:
            return _error(b"null", INVALID_REQUEST, "The batch is empty.")
        if len(parts) > MAX_BATCH:
            return _error(b"null", INVALID_REQUEST, f"The batch has {len(parts)} calls; at most {MAX_BATCH} are taken.")
        answers, size = [], 0
        for part in parts:
            if size > MAX_ANSWER_BYTES and isinstance(part, _Call) and _is_id(part.id):
                answers.append(_error(part.id, RESPONSE_TOO_LARGE, "The answers before this one were too large."))
                continue
            answer = self._answer_call(part) if isinstance(part, _Call) else self._answer_part(part)
            if answer is not None:
                answers.append(answer)
                size += len(answer)
        return b"[" + b",".join(answers) + b"]" if answers else None

    def _answer_part(self, part: msgspec.Raw) -> bytes | None:
        try:
            return self._answer_call(_call.decode(part))
        except (msgspec.MsgspecError, RecursionError):
            return self._refuse(bytes(part))

    def _answer_call(self, call: _Call) -> bytes | None:
        call_id = bytes(call.id)
        if call_id and not _is_id(call_id):
            return _error(b"null", INVALID_REQUEST, "An id is a string, a number or null.")
        if call.jsonrpc != "2.0":
            return _error(call_id or b"null", INVALID_REQUEST, 'The request lacks "jsonrpc": "2.0".')
        try:
            result = self._result(call)
        except ChainRpcError as error:
            return _error(call_id, error.code, error.message) if call_id else None
        return b'{"jsonrpc":"2.0","id":' + call_id + b',"result":' + result + b"}" if call_id else None

    def _result(self, call: _Call) -> bytes:
        method = self._methods.get(call.method)
        if method is None:
            raise ChainRpcError(METHOD_NOT_FOUND, f"The method {call.method[:100]} does not exist or is not available.")
        if isinstance(call.params, dict):
            raise ChainRpcError(INVALID_PARAMS, "Parameters are given as a list here, not by name.")
        return method(call.params or [])

    def _refuse(self, body: bytes) -> bytes:
        """Say what is wrong with something that is no call."""
        try:
            request = _anything.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return _error(b"null", PARSE_ERROR, "The body is not valid JSON.")
        call_id = request.get("id") if isinstance(request, dict) else None
        usable = isinstance(call_id, str | int | float) and not isinstance(call_id, bool)
        echoed = msgspec.json.encode(call_id) if usable else b"null"
        return _error(echoed, INVALID_REQUEST, "The request is not a JSON-RPC 2.0 call.")


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_id(raw: bytes | msgspec.Raw) -> bool:
    return bytes(raw)[:1] in b'"-0123456789n' and len(raw) > 0


def _error(call_id: bytes | msgspec.Raw, code: int, message: str) -> bytes:
    error = msgspec.json.encode({"code": code, "message": message})
    return b'{"jsonrpc":"2.0","id":' + bytes(call_id) + b',"error":' + error + b"}"
