"""Compact JWS: ES256 for everything we sign; RS256 too where keys of another issuer are trusted.

PyJWT reads keys and checks signatures. The compact form is read here: PyJWT accepts more than we do, and takes
milliseconds for a long token that anybody may send.

The algorithm belongs to the key: a token must name the one that its key is for, so that `none`, a shared secret
(`HS256`) or one key in the place of another never gets as far as a comparison. The header must hold `alg`, `kid` and
`typ` and nothing that brings a key along (`jwk`, `jku`, `x5u`, ...): such a token is refused before anything else of it
is read.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from jwt import PyJWK

from tracelake.errors import TraceError

MAX_TOKEN_CHARS = 64 * 1024
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a JSON decoder raises for text that it cannot read."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of what we sign ourselves."""

    types: ClassVar[tuple[str, ...]] = ("JWT",)

    alg: str
    kid: str
    typ: str = "JWT"


class ForeignHeader(Header, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other issuers also put thumbprints of their certificates there; they are not looked at."""

    types: ClassVar[tuple[str, ...]] = ("JWT", "at+jwt")

    x5t: str = ""
    x5t_s256: str = msgspec.field(default="", name="x5t#S256")


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token that was taken apart; nothing of it may be believed yet."""

    header: Header
    payload: bytes
    signature: bytes
    message: bytes


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(part: str) -> bytes:
    """Strict: one spelling per value, so that a token has no second spelling."""
    data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if b64(data) != part:
        raise binascii.Error("not canonical")
    return data


def encode(payload: bytes, kid: str, sign: Callable[[bytes], bytes]) -> str:
    header = msgspec.json.encode({"alg": "ES256", "kid": kid, "typ": "JWT"})
    signing_input = f"{b64(header)}.{b64(payload)}"
    return f"{signing_input}.{b64(sign(signing_input.encode()))}"


def verify(token: str, find_key: Callable[[str], PyJWK | None]) -> tuple[str, bytes]:
    """`(kid, payload)` of a token whose signature holds; 401 with a stable code otherwise."""
    parts = take_apart(token)
    return parts.header.kid, check(parts, find_key(parts.header.kid))


def take_apart(token: str, header_type: type[Header] = Header) -> Unverified:
    if len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise TraceError("credential_malformed")
    parts = token.split(".")
    if len(parts) != 3:
        raise TraceError("credential_malformed")
    try:
        header = msgspec.json.decode(unb64(parts[0]), type=header_type)
        unverified = Unverified(header, unb64(parts[1]), unb64(parts[2]), f"{parts[0]}.{parts[1]}".encode())
    except (*UNREADABLE, binascii.Error) as error:
        raise TraceError("credential_malformed") from error
    if header.alg not in ("ES256", "RS256") or header.typ not in header.types:
        raise TraceError("credential_invalid")
    return unverified


def check(parts: Unverified, key: PyJWK | None) -> bytes:
    """The payload, if this key signed it in the way that the key is for."""
    if key is None:
        raise TraceError("credential_unknown_key")
    if key.algorithm_name != parts.header.alg:
        raise TraceError("credential_invalid")
    if not key.Algorithm.verify(parts.message, key.key, parts.signature):
        raise TraceError("credential_invalid")
    return parts.payload
