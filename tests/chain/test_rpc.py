"""The JSON-RPC parser: whatever comes in, what goes out is a valid answer, or nothing when only notifications came."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracelake.demo.chain import rpc as module
from tracelake.demo.chain.rpc import ChainRpcError, Rpc


def _echo(params: list[Any]) -> bytes:
    return json.dumps(params).encode()


def _fail(params: list[Any]) -> bytes:
    raise ChainRpcError(-32602, "no, never")


RPC = Rpc({"echo": _echo, "fail": _fail})


def _answer(body: bytes | str) -> Any:
    answer = RPC.answer(body.encode() if isinstance(body, str) else body)
    return None if answer is None else json.loads(answer)


def _code(body: bytes | str) -> tuple[int, Any]:
    answer = _answer(body)
    return answer["error"]["code"], answer["id"]


@pytest.mark.parametrize(
    "identity", ["1", "-7", '"a"', "null", "1.5", "123456789012345678901234567890", '"\\u00e9 \\""']
)
def test_an_id_comes_back_as_it_was(identity: str) -> None:
    body = f'{{"jsonrpc":"2.0","id":{identity},"method":"echo","params":[1,"x"]}}'
    assert _answer(body) == {"jsonrpc": "2.0", "id": json.loads(identity), "result": [1, "x"]}
    assert f'"id":{identity},'.encode() in (RPC.answer(body.encode()) or b"")


@pytest.mark.parametrize(
    ("body", "code", "identity"),
    [
        ("", -32700, None),
        ("   ", -32700, None),
        ("{", -32700, None),
        ('{"jsonrpc":"2.0","id":1,"method":"echo"', -32700, None),
        ('[{"jsonrpc":"2.0","id":1,"method":"echo"}', -32700, None),
        ("[1,", -32700, None),
        (b"\xff\xfe", -32700, None),
        ("[" * 100_000, -32700, None),
        ('{"a":' * 100_000, -32700, None),
        ("1", -32600, None),
        ("null", -32600, None),
        ("{}", -32600, None),
        ("[]", -32600, None),
        ('{"jsonrpc":"2.0","id":1}', -32600, 1),
        ('{"jsonrpc":"2.0","id":"x","method":7}', -32600, "x"),
        ('{"jsonrpc":"1.0","id":1,"method":"echo"}', -32600, 1),
        ('{"id":1,"method":"echo"}', -32600, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"echo","params":7}', -32600, 1),
        ('{"jsonrpc":"2.0","id":{},"method":"echo"}', -32600, None),
        ('{"jsonrpc":"2.0","id":true,"method":"echo"}', -32600, None),
        ('{"jsonrpc":"2.0","id":[1],"method":7}', -32600, None),
        ('{"jsonrpc":"2.0","id":1,"method":"nothing"}', -32601, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":1}}', -32602, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"fail"}', -32602, 1),
    ],
)
def test_what_is_wrong_is_said_with_its_code(body: str | bytes, code: int, identity: Any) -> None:
    assert _code(body) == (code, identity)


def test_parameters_may_be_left_out() -> None:
    for given_params in ("", ',"params":null', ',"params":[]'):
        assert _answer(f'{{"jsonrpc":"2.0","id":1,"method":"echo"{given_params}}}')["result"] == []


def test_a_notification_is_not_answered_even_when_it_fails() -> None:
    for method in ("echo", "fail", "nothing"):
        assert RPC.answer(json.dumps({"jsonrpc": "2.0", "method": method}).encode()) is None
    assert RPC.answer(b'[{"jsonrpc":"2.0","method":"echo"},{"jsonrpc":"2.0","method":"fail"}]') is None


def test_each_call_of_a_batch_is_answered_for_itself() -> None:
    """The batch of the JSON-RPC specification's own examples: good, notified, broken and unknown calls together."""
    batch = [
        {"jsonrpc": "2.0", "method": "echo", "params": [1, 2], "id": "1"},
        {"jsonrpc": "2.0", "method": "echo", "params": [7]},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "nothing", "params": {"name": "myself"}, "id": "5"},
        1,
        {"jsonrpc": "2.0", "method": "echo", "id": 9},
    ]
    answers = _answer(json.dumps(batch))
    assert [(one["id"], one.get("result"), one.get("error", {}).get("code")) for one in answers] == [
        ("1", [1, 2], None),
        (None, None, -32600),
        ("5", None, -32601),
        (None, None, -32600),
        (9, [], None),
    ]


def test_a_batch_has_a_largest_size() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "echo"}
    assert len(_answer(json.dumps([call] * module.MAX_BATCH))) == module.MAX_BATCH
    assert _code(json.dumps([call] * (module.MAX_BATCH + 1))) == (-32600, None)
    assert _code(json.dumps([1] * (module.MAX_BATCH + 1))) == (-32600, None)


def test_what_no_longer_fits_into_an_answer_is_refused_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100)
    calls = [{"jsonrpc": "2.0", "id": number, "method": "echo", "params": ["x" * 80]} for number in range(4)]
    answers = _answer(json.dumps(calls))
    assert [one["id"] for one in answers] == [0, 1, 2, 3]
    assert [one.get("error", {}).get("code") for one in answers] == [None, -32003, -32003, -32003]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_CALLS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
        "id": _JSON,
        "method": st.sampled_from(["echo", "fail", "nothing", "", 3]),
        "params": _JSON,
        "more": _JSON,
    },
)
_BODIES = st.one_of(
    st.binary(max_size=80),
    _JSON.map(lambda value: json.dumps(value).encode()),
    _CALLS.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.lists(_CALLS | _JSON, max_size=6).map(lambda value: json.dumps(value).encode()),
    st.tuples(_CALLS, st.integers(0, 200)).map(lambda cut: json.dumps(cut[0]).encode()[: cut[1]]),
    st.tuples(_CALLS, st.integers(0, 200), st.binary(min_size=1, max_size=2)).map(
        lambda hit: json.dumps(hit[0]).encode()[: hit[1]] + hit[2] + json.dumps(hit[0]).encode()[hit[1] :]
    ),
)


@settings(max_examples=200, deadline=None)
@example(b'{"jsonrpc":"2.0","id":"\xff","method":"echo"}')
@example(b'{"jsonrpc":"2.0","id":"\\ud800","method":"echo"}')
@example(b'{"jsonrpc":"2.0","id":01,"method":"echo"}')
@example(b'{"jsonrpc":"2.0","id":-,"method":"echo"}')
@example(b'{"jsonrpc":"2.0","id":nul,"method":"echo"}')
@example(b'{"jsonrpc":"2.0","id":1e999,"method":"echo"}')
@example(b'{"jsonrpc":"2.0","id":"a\nb","method":"echo"}')
@example(b'[{"jsonrpc":"2.0","id":"\xff","method":"echo"},{"jsonrpc":"2.0","id":" \x00","method":"echo"}]')
@given(_BODIES)
def test_whatever_comes_in_the_answer_is_valid(body: bytes) -> None:
    raw = RPC.answer(body)
    if raw is None:
        return
    answer = json.loads(raw.decode())
    assert answer != []
    for one in answer if isinstance(answer, list) else [answer]:
        assert one["jsonrpc"] == "2.0"
        assert one["id"] is None or isinstance(one["id"], str | int | float)
        assert not isinstance(one["id"], bool)
        assert one.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
        if "error" in one:
            assert isinstance(one["error"]["code"], int)
            assert isinstance(one["error"]["message"], str)
