"""Compact JWS with ES256, and with ES256 alone.

The header must hold exactly `alg`, `kid` and `typ`: a token that brings its own key (`jwk`, `x5u`, ...) or
names another algorithm is refused before anything else of it is read.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from tracelake.errors import TraceError
from tracelake.ports import PublicKey

MAX_TOKEN_CHARS = 64 * 1024
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a JSON decoder raises for text that it cannot read."""
_ECDSA = ec.ECDSA(SHA256())


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    alg: str
    kid: str
    typ: str = "JWT"


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def encode(payload: bytes, kid: str, sign: Callable[[bytes], bytes]) -> str:
    header = msgspec.json.encode({"alg": "ES256", "kid": kid, "typ": "JWT"})
    signing_input = f"{b64(header)}.{b64(payload)}"
    return f"{signing_input}.{b64(sign(signing_input.encode()))}"


def public_key(key: PublicKey) -> ec.EllipticCurvePublicKey:
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(key.x, "big"), int.from_bytes(key.y, "big"), ec.SECP256R1())
    return numbers.public_key()


def verify(token: str, find_key: Callable[[str], ec.EllipticCurvePublicKey | None]) -> tuple[str, bytes]:
    """`(kid, payload)` of a token whose signature holds; 401 with a stable code otherwise."""
    if len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise TraceError("credential_malformed")
    parts = token.split(".")
    if len(parts) != 3:
        raise TraceError("credential_malformed")
    try:
        header = msgspec.json.decode(_unb64(parts[0]), type=_Header)
        payload = _unb64(parts[1])
        signature = _unb64(parts[2])
    except (*UNREADABLE, binascii.Error) as error:
        raise TraceError("credential_malformed") from error
    if header.alg != "ES256" or header.typ != "JWT" or len(signature) != 64:
        raise TraceError("credential_invalid")
    key = find_key(header.kid)
    if key is None:
        raise TraceError("credential_unknown_key")
    der = encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
    try:
        key.verify(der, f"{parts[0]}.{parts[1]}".encode(), _ECDSA)
    except InvalidSignature as error:
        raise TraceError("credential_invalid") from error
    return header.kid, payload


def _unb64(part: str) -> bytes:
    """Strict: one spelling per value, so that a token has no second spelling."""
    data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if b64(data) != part:
        raise binascii.Error("not canonical")
    return data
