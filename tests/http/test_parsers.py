"""Every parser of outside text, on arbitrary input: the value or a typed refusal, never anything else."""

import posixpath
import unicodedata
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm

from tracelake.errors import TraceError
from tracelake.http.app import decode
from tracelake.model.prefixes import is_canonical_prefix, lies_under, parse_uri
from tracelake.tokens import jws
from tracelake.wire.base import ErrorBody, ErrorInfo
from tracelake.wire.parameters import parse_uuid
from tracelake.wire.routes import ROUTES
from tracelake.wire.task_calls import BatchCall

F = TypeVar("F", bound=Callable[..., None])

PREFIX = "s3://trace-scratch/buffers/11111111-1111-4111-8111-111111111111/1/"
PIECES = st.sampled_from([
    "s3://", "S3://", "trace-scratch", "bucket", "/", "//", ".", "..", "a", "b", "bc", "%2e", "%2F", "\\", "*", "?",
    "\n", "\x00", "\x7f", "\x85", "é", "e\u0301", "\ud800", " ", "_SUCCESS", PREFIX, PREFIX[:-1], PREFIX[5:],
    "\u2215", "\uff0e",
])  # fmt: skip
ADDRESSES = st.one_of(
    st.lists(PIECES, max_size=8).map("".join),
    st.lists(PIECES, max_size=6).map(lambda parts: PREFIX + "".join(parts)),
    st.text(max_size=40).map(lambda text: PREFIX + text),
    st.text(max_size=60),
)


def many(count: int) -> Callable[[F], F]:
    def decorate(test: F) -> F:
        return settings(
            max_examples=count,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )(test)

    return decorate


def naive(uri: str) -> tuple[str, str] | None:
    """The rules of a canonical address once more, one by one and with no regard to speed."""
    if not uri.startswith("s3://"):
        return None
    bucket, slash, key = uri.removeprefix("s3://").partition("/")
    if slash == "" or not 3 <= len(bucket) <= 63:
        return None
    edges = "abcdefghijklmnopqrstuvwxyz0123456789"
    if bucket[0] not in edges or bucket[-1] not in edges or any(char not in edges + ".-" for char in bucket):
        return None
    if ".." in bucket:
        return None
    if any(char in "*?\\%" or unicodedata.category(char) in ("Cc", "Cs") for char in key):
        return None
    if unicodedata.normalize("NFC", key) != key or len(key.encode()) > 1024:
        return None
    segments = key.split("/")
    if segments[-1] == "" and len(segments) > 1:
        segments.pop()
    return None if any(segment in ("", ".", "..") for segment in segments) else (bucket, key)


@many(600)
@given(ADDRESSES)
@example("s3://bucket/")
@example("s3://bucket/a//")
@example("s3://bucket\n/a")
@example(PREFIX + "a" * 960)
@example(PREFIX + "a" * 970)
def test_an_address_is_canonical_or_nothing(uri: str) -> None:
    parsed = parse_uri(uri)
    assert parsed == naive(uri)
    if parsed is not None:
        bucket, key = parsed
        assert f"s3://{bucket}/{key}" == uri
        assert is_canonical_prefix(uri) == (uri.endswith("/") and "${" not in uri)
        # Whatever resolves paths, resolves it to itself.
        path = f"/{bucket}/{key}".rstrip("/")
        assert posixpath.normpath(path) == path


@many(600)
@given(ADDRESSES)
@example(PREFIX + "../x")
@example(PREFIX[:-1] + "0/x")
def test_what_lies_under_a_prefix_never_escapes_it(uri: str) -> None:
    if not lies_under(uri, PREFIX):
        assert naive(uri) is None or uri.endswith("/") or not uri.startswith(PREFIX)
        return
    top = "/root/" + PREFIX.removeprefix("s3://")
    path = posixpath.normpath(posixpath.join("/root", uri.removeprefix("s3://")))
    assert path.startswith(top)
    assert len(path) > len(top)
    assert uri.startswith(PREFIX)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
BODIES: dict[str, Any] = {route.body.__name__: route.body for route in ROUTES if route.decoder is not None} | {
    "BatchCall": BatchCall
}


def likely(kind: Any) -> st.SearchStrategy[Any]:
    """Objects with the field names of the type, and values that are sometimes of the right type."""
    scalars = st.sampled_from(
        [
            "11111111-1111-4111-8111-111111111111",
            "Completed",
            "heartbeat",
            "noop",
            "a",
            "a\n",
            "",
            0,
            1,
            -1,
            2**63,
            "1-2",
        ]
    )
    values = st.one_of(scalars, JSON, st.lists(scalars, max_size=2))
    fields = [field.encode_name for field in msgspec.structs.fields(kind)]
    return st.dictionaries(st.sampled_from([*fields, "other"]), values, max_size=len(fields) + 1)


def outcome(kind: Any, data: bytes) -> Any:
    try:
        return decode(msgspec.json.Decoder(kind), data)
    except TraceError as refusal:
        return refusal


def check_decoding(kind: Any, data: bytes) -> None:
    found = outcome(kind, data)
    if not isinstance(found, TraceError):
        assert isinstance(found, kind)
        assert b"\\u0000" not in msgspec.json.encode(found)
        return
    assert found.code in ("body_invalid", "body_malformed")
    # The refusal itself can be sent.
    body = ErrorBody(error=ErrorInfo(code=found.code, message=found.message, details=found.details))
    msgspec.json.decode(msgspec.json.encode(body), type=ErrorBody)
    if found.code == "body_malformed":
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
            msgspec.json.decode(data)


@pytest.mark.parametrize("name", sorted(BODIES))
def test_any_json_gives_the_struct_or_a_refusal(name: str) -> None:
    kind = BODIES[name]

    @many(60)
    @given(st.one_of(likely(kind), JSON))
    def check(document: Any) -> None:
        check_decoding(kind, msgspec.json.encode(document))

    check()


@many(200)
@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=60), st.integers(0, 40))
@example("ClaimRequest", b'{"a": 1e400}', 0)
@example("ClaimRequest", b'{"task_id": "\\ud800"}', 0)
@example("JobRequest", b'{"config": ' + b'{"a":' * 3000, 0)
@example("JobRequest", b'{"config": ' + b'{"a":' * 3000 + b"1" + b"}" * 3001, 0)
def test_any_bytes_give_the_struct_or_a_refusal(name: str, noise: bytes, at: int) -> None:
    good = b'{"task_id": "11111111-1111-4111-8111-111111111111", "worker_id": "w"}'
    check_decoding(BODIES[name], noise)
    check_decoding(BODIES[name], good[:at] + noise + good[at:])


KEY = PyJWK(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True))
B64 = st.text("ABCabc012-_=+/. ", max_size=30)


@many(400)
@given(
    st.one_of(
        st.text(max_size=80),
        st.lists(B64, max_size=5).map(".".join),
        st.tuples(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=70)).map(
            lambda parts: ".".join(jws.b64(part) for part in parts)
        ),
        st.tuples(
            st.dictionaries(
                st.sampled_from(["alg", "kid", "typ", "jwk"]), JSON | st.sampled_from(["ES256", "k", "JWT"])
            ),
            st.binary(max_size=20),
            st.binary(min_size=64, max_size=64),
        ).map(lambda parts: f"{jws.b64(msgspec.json.encode(parts[0]))}.{jws.b64(parts[1])}.{jws.b64(parts[2])}"),
    )
)
@example(f"{jws.b64(b'{' * 50_000)}..")
@example("é.a.b")
def test_any_text_as_a_token_is_401(token: str) -> None:
    with pytest.raises(TraceError) as refused:
        jws.verify(token, lambda kid: KEY if kid == "k" else None)
    assert refused.value.status == 401


@many(200)
@given(st.one_of(st.text(max_size=50), st.uuids().map(str), st.text("0123456789abcdefABCDEF-{}_urn:", max_size=50)))
@example("{11111111-1111-4111-8111-111111111111}")
@example("\u0661" * 32)
@example("11111111-1111-4111-8111-11111111111_")
@example("11111111-1111-4111-8111-111111111111\n")
def test_a_uuid_in_a_path_has_one_form(text: str) -> None:
    parsed = parse_uuid(text)
    canonical = len(text) == 36 and [text[at] for at in (8, 13, 18, 23)] == ["-"] * 4
    hexadecimal = all(char in "0123456789abcdefABCDEF" for char in text.replace("-", ""))
    if canonical and hexadecimal and text.count("-") == 4:
        assert parsed == UUID(text)
    else:
        assert parsed is None
