"""Compact JWS: ES256 for everything we sign; RS256 too where keys of somebody else are trusted.

The algorithm belongs to the key: a token must name the one that its key is for, so that `none`, a shared secret
(`HS256`) or one key in the place of another never gets as far as a comparison. The header must hold `alg`, `kid` and
`typ` and nothing that brings a key along (`jwk`, `jku`, `x5u`, ...): such a token is refused before anything else of it
is read.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from tracelake.errors import TraceError
from tracelake.ports import PublicKey

MAX_TOKEN_CHARS = 64 * 1024
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a JSON decoder raises for text that it cannot read."""
_ECDSA = ec.ECDSA(SHA256())
_SHA256 = SHA256()
_PKCS1 = padding.PKCS1v15()


class VerifyingKey(Protocol):
    """A public key together with the one algorithm that it is for."""

    @property
    def alg(self) -> str: ...

    def verify(self, signature: bytes, message: bytes) -> None:
        """Raise InvalidSignature unless it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Es256Key:
    key: ec.EllipticCurvePublicKey
    alg: ClassVar[str] = "ES256"

    def verify(self, signature: bytes, message: bytes) -> None:
        if len(signature) != 64:
            raise InvalidSignature
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        self.key.verify(encode_dss_signature(r, s), message, _ECDSA)


@dataclass(frozen=True, slots=True)
class Rs256Key:
    key: rsa.RSAPublicKey
    alg: ClassVar[str] = "RS256"

    def verify(self, signature: bytes, message: bytes) -> None:
        self.key.verify(signature, message, _PKCS1, _SHA256)


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


def public_key(key: PublicKey) -> Es256Key:
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(key.x, "big"), int.from_bytes(key.y, "big"), ec.SECP256R1())
    return Es256Key(numbers.public_key())


def verify(token: str, find_key: Callable[[str], VerifyingKey | None]) -> tuple[str, bytes]:
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


def check(parts: Unverified, key: VerifyingKey | None) -> bytes:
    """The payload, if this key signed it in the way that the key is for."""
    if key is None:
        raise TraceError("credential_unknown_key")
    if key.alg != parts.header.alg:
        raise TraceError("credential_invalid")
    try:
        key.verify(parts.signature, parts.message)
    except InvalidSignature as error:
        raise TraceError("credential_invalid") from error
    return parts.payload
