"""The signature of a delivery: one spelling, and no way to move a byte from one part into another."""

import hashlib
import hmac
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.model.ids import new_id
from tracelake.ports import DerivedSecrets
from tracelake.wire.webhooks import MAX_SIGNATURES, UNKNOWN_TYPE, is_signed, read_head, sign, signature_header

HEX = "0123456789abcdef" * 4
VISIBLE = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="."), min_size=1, max_size=200
)
TIMES = st.integers(0, 10**12 - 1)
SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=50)


def test_it_is_what_the_documents_say() -> None:
    expected = hmac.new(b"secret", b'1700000000.d-1.{"a": 1}', hashlib.sha256).hexdigest()
    assert sign("secret", 1_700_000_000, "d-1", b'{"a": 1}') == expected
    assert signature_header(["secret"], 1_700_000_000, "d-1", b'{"a": 1}') == f"t=1700000000,v1={expected}"


@given(time=TIMES, delivery=VISIBLE, body=st.binary(max_size=100), secrets=st.lists(SECRETS, min_size=1, max_size=8))
def test_what_is_signed_is_read_and_found_good(time: int, delivery: str, body: bytes, secrets: list[str]) -> None:
    head = read_head(signature_header(secrets, time, delivery, body), delivery, "text/plain")
    assert head is not None
    assert (head.time, head.delivery_id, len(head.signatures)) == (time, delivery, len(secrets))
    for secret in secrets:
        assert is_signed(head, ["another", secret], body)
    assert not is_signed(head, [], body)
    assert not is_signed(head, [secret + "x" for secret in secrets if secret + "x" not in secrets], body)
    assert not is_signed(head, secrets, body + b" ")
    assert not is_signed(head._replace(time=time + 1), secrets, body)
    assert not is_signed(head._replace(delivery_id=delivery + "x"), secrets, body)


@given(body=st.binary(max_size=30).map(lambda data: data.replace(b"\0", b".")), delivery=VISIBLE)
def test_no_delivery_can_be_taken_for_another_one(body: bytes, delivery: str) -> None:
    """Whoever saw a signed delivery moves the border between its parts: what comes out is no id."""
    signed = f"7.{delivery}.".encode() + body
    head = read_head(signature_header(["s"], 7, delivery, body), delivery, None)
    assert head is not None
    rest = signed.removeprefix(b"7.")
    for end in range(len(rest)):
        other, other_body = rest[:end], rest[end + 1 :]
        if rest[end : end + 1] == b"." and (other, other_body) != (delivery.encode(), body):
            assert read_head(signature_header(["s"], 7, delivery, body), other.decode("latin-1"), None) is None


@given(text=st.one_of(st.text(max_size=300), st.from_regex(r"t=[0-9+_ ]{0,14},(v[0-9]=[0-9a-fA-F]{60,66},?){0,10}")))
def test_everything_else_is_refused_and_never_fails(text: str) -> None:
    head = read_head(text, "one", None)
    good = re.fullmatch(r"t=(0|[1-9]\d{0,11})(,v1=[0-9a-f]{64}){1,8}", text, re.ASCII)
    assert (head is not None) == (good is not None)


@pytest.mark.parametrize(
    "text",
    [
        "", "t=1", f"v1={HEX}", f"v1={HEX},t=1", f"t=1,v1={HEX.upper()}", f"t=1,v1={HEX[1:]}", f"t=1,v1={HEX}0",
        f"t=1, v1={HEX}", f" t=1,v1={HEX}", f"t=1,v1={HEX} ", f"t=1,v1={HEX},", f"t=1,v0={HEX}", f"t=-1,v1={HEX}",
        f"t=01,v1={HEX}", f"t=1.5,v1={HEX}", f"t=1e3,v1={HEX}", f"t=,v1={HEX}", f"t=1,t=2,v1={HEX}",
        f"t=\u0661,v1={HEX}", f"t=1,v1={HEX}\n", f"t={10**12},v1={HEX}", "t=1" + f",v1={HEX}" * (MAX_SIGNATURES + 1),
    ],
)  # fmt: skip
def test_other_spellings(text: str) -> None:
    assert read_head(text, "one", None) is None


@pytest.mark.parametrize("delivery", ["", " ", "a b", "a\n", "a.b", ".", "\u00e9", "a\0", "x" * 201, "\x7f"])
def test_ids_that_are_none(delivery: str) -> None:
    assert read_head(f"t=1,v1={HEX}", delivery, None) is None


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("text/html; charset=utf-8", "text/html; charset=utf-8"), (None, UNKNOWN_TYPE), ("", UNKNOWN_TYPE),
        ("x" * 200, "x" * 200), ("x" * 201, UNKNOWN_TYPE), ("text/html\r\nset-cookie: a", UNKNOWN_TYPE),
        ("\u00e9", UNKNOWN_TYPE), (" a", UNKNOWN_TYPE),
    ],
)  # fmt: skip
def test_a_content_type_that_cannot_be_sent_back_is_none(sent: str | None, kept: str) -> None:
    head = read_head(f"t=1,v1={HEX}", "one", sent)
    assert head is not None
    assert head.content_type == kept


def test_each_source_and_each_rotation_has_its_own_secret() -> None:
    one, other = new_id(), new_id()
    names = [(one, "d", "j", 1), (other, "d", "j", 1), (one, "e", "j", 1), (one, "d", "k", 1), (one, "d", "j", 2)]
    keys = [DerivedSecrets(bytes([number]) * 32) for number in (1, 2)]
    secrets = [key.secret(*name) for key in keys for name in names]
    assert len(set(secrets)) == 10
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", secret) for secret in secrets)
    assert secrets[0] == DerivedSecrets(b"\1" * 32).secret(one, "d", "j", 1)
    with pytest.raises(ValueError, match="32 bytes"):
        DerivedSecrets(b"short")
