"""Keys of somebody else's issuer: a JWKS document, read again when that can help.

An unknown `kid` makes `JwksKeys` look for a newer document, at most once per `again_seconds` however many tokens ask.
A document older than `stale_seconds` is looked for again beside the requests, so that a key that was given up is
forgotten. While the source is away or tells nonsense, the last good document stays.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from tracelake.tokens import jws
from tracelake.tokens.verify import KeyDirectory

logger = logging.getLogger(__name__)

MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
_MIN_EXPONENT, _MAX_EXPONENT = 65537, 2**32
_NEVER = float("-inf")


_Base64Url = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]+\\Z")]


class _Jwk(msgspec.Struct, frozen=True, kw_only=True, tag_field="kty"):
    """The public members of a key that verifies. All others are left out, those of a private key too."""

    kid: Annotated[str, msgspec.Meta(min_length=1)]
    use: Literal["sig"] = "sig"
    key_ops: list[str] | None = None


class _EcJwk(_Jwk, frozen=True, kw_only=True, tag="EC"):
    crv: Literal["P-256"]
    x: _Base64Url
    y: _Base64Url
    alg: Literal["ES256"] | None = None


class _RsaJwk(_Jwk, frozen=True, kw_only=True, tag="RSA"):
    n: _Base64Url
    e: _Base64Url
    alg: Literal["RS256"] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[msgspec.Raw]


def read_jwks(document: bytes) -> dict[str, PyJWK]:
    """The keys that can verify a token, by `kid`. Others (encryption, other algorithms, too short) are left out.

    A `kid` that stands there twice is left out too: nobody should have to guess which key was meant. Raises ValueError
    if the document is no JWKS at all.
    """
    try:
        entries = msgspec.json.decode(document, type=_Document).keys
    except jws.UNREADABLE as error:
        raise ValueError("not a JWKS document") from error
    keys: dict[str, PyJWK] = {}
    key_ids: set[str] = set()
    for raw in entries:
        try:
            entry = msgspec.json.decode(raw, type=_EcJwk | _RsaJwk)
            key = _key(entry)
        except (*jws.UNREADABLE, PyJWTError):
            continue
        if key is None:
            continue
        if entry.kid in key_ids:
            keys.pop(entry.kid, None)
            continue
        key_ids.add(entry.kid)
        keys[entry.kid] = key
    return keys


def _key(entry: _EcJwk | _RsaJwk) -> PyJWK | None:
    if "verify" not in (entry.key_ops or ["verify"]):
        return None
    key = PyJWK(msgspec.to_builtins(entry))
    if isinstance(entry, _RsaJwk):
        numbers = key.key.public_numbers()
        if not MIN_RSA_BITS <= numbers.n.bit_length() <= MAX_RSA_BITS:
            return None
        if not _MIN_EXPONENT <= numbers.e < _MAX_EXPONENT:
            return None
    return key


class RingKeys:
    """The stack's own user keys."""

    header_type: type[jws.Header] = jws.Header

    def __init__(self, ring: KeyDirectory) -> None:
        self._ring = ring

    async def find(self, kid: str, now: datetime) -> PyJWK | None:
        return self._ring.find(kid, now)


class JwksKeys:
    header_type: type[jws.Header] = jws.ForeignHeader

    def __init__(
        self,
        load: Callable[[], bytes | None],
        *,
        again_seconds: float,
        stale_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` blocks; it answers the document, or None when it is what it was, and raises OSError or ValueError."""
        self._load = load
        self._again_seconds = again_seconds
        self._stale_seconds = stale_seconds
        self._monotonic = monotonic
        self._keys: dict[str, PyJWK] = {}
        self._looked = _NEVER
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Read the document now; who comes meanwhile waits for the same answer."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        # Shielded: one caller that leaves must not take the answer away from the others.
        await asyncio.shield(self._looking)

    async def find(self, kid: str, now: datetime) -> PyJWK | None:  # noqa: ARG002 - the ring's need
        age = self._monotonic() - self._looked
        if kid not in self._keys and (age >= self._again_seconds or self._looking is not None):
            await self.look()
        elif age >= self._stale_seconds and self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return self._keys.get(kid)

    def loaded(self, kid: str) -> PyJWK | None:
        """The key, if the last document had it."""
        return self._keys.get(kid)

    async def _look(self) -> None:
        self._looked = self._monotonic()
        try:
            document = await asyncio.to_thread(self._load)
            if document is not None:
                self._keys = read_jwks(document)
                logger.info("user keys read", extra={"keys": len(self._keys)})
        except (OSError, ValueError) as error:
            logger.warning("user keys could not be read", extra={"reason": type(error).__name__})
        finally:
            self._looking = None
