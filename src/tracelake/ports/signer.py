"""The Signer port: ES256 signatures by a key ring that rotates without false rejections.

A ring holds one current key, at most one coming key (published one cache period before it signs), and retired
keys that can still have a live token. Times come from the caller, who has them from `trace_now()`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A P-256 public key: affine coordinates, as a JWK names them."""

    kid: str
    x: bytes
    y: bytes


class Signer(Protocol):
    def current_kid(self, now: datetime) -> str: ...

    def sign(self, kid: str, message: bytes) -> bytes:
        """The raw 64-byte `r || s` signature that a JWS carries."""
        ...

    def public_keys(self, now: datetime) -> Sequence[PublicKey]:
        """Every key a verifier must know at `now`: coming, current, and retired but not yet forgotten."""
        ...

    def refresh(self) -> None:
        """Look again for keys that another process added."""
        ...
