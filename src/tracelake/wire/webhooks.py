"""Webhooks on the wire: how a delivery is signed, and what is answered.

The sender signs `{t}.{delivery}.` and the raw body with the webhook's secret (HMAC-SHA256, in lower-case hex) and sends

    X-Trace-Delivery: <id of the delivery, 1 to 200 visible ASCII characters but no dot>
    X-Trace-Signature: t=<unix seconds>,v1=<signature>[,v1=<signature by another secret>]...

There is exactly one spelling: no spaces, no capitals, `t` first. An id has no dot, so that the signed text can be split
in one way only: otherwise a signed delivery could be replayed as another one, with part of its body as the id.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Literal, NamedTuple

from tracelake.wire.base import Reply

SIGNATURE_HEADER = "x-trace-signature"
DELIVERY_HEADER = "x-trace-delivery"
MAX_SIGNATURES = 8
UNKNOWN_TYPE = "application/octet-stream"

_V1 = r"v1=[0-9a-f]{64}"
_SIGNATURE = re.compile(rf"t=(0|[1-9][0-9]{{0,11}}),({_V1}(?:,{_V1}){{0,{MAX_SIGNATURES - 1}}})")
DELIVERY_PATTERN = r"[!-,/-~-]{1,200}"
_DELIVERY = re.compile(DELIVERY_PATTERN)
_CONTENT_TYPE = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")


class SignedHead(NamedTuple):
    """The headers of a delivery, before the signature is verified."""

    time: int
    """Unix seconds."""
    signatures: tuple[str, ...]
    delivery_id: str
    content_type: str


def read_head(signature: str, delivery_id: str, content_type: str | None) -> SignedHead | None:
    """None unless the headers have the form above. An invalid content type is replaced by `UNKNOWN_TYPE`."""
    match = _SIGNATURE.fullmatch(signature)
    if match is None or not _DELIVERY.fullmatch(delivery_id):
        return None
    signatures = tuple(part.removeprefix("v1=") for part in match[2].split(","))
    if content_type is None or not _CONTENT_TYPE.fullmatch(content_type):
        content_type = UNKNOWN_TYPE
    return SignedHead(int(match[1]), signatures, delivery_id, content_type)


def sign(secret: str, time: int, delivery_id: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{time}.{delivery_id}.".encode() + body, hashlib.sha256).hexdigest()


def signature_header(secrets: Iterable[str], time: int, delivery_id: str, body: bytes) -> str:
    return ",".join([f"t={time}", *(f"v1={sign(secret, time, delivery_id, body)}" for secret in secrets)])


def is_signed(head: SignedHead, secrets: Iterable[str], body: bytes) -> bool:
    """Whether one of the signatures is valid for one of the secrets. Every pair is compared, in any case."""
    expected = [sign(secret, head.time, head.delivery_id, body) for secret in secrets]
    matches = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in head.signatures]
    return any(matches)


class DeliveryReply(Reply, frozen=True, kw_only=True):
    """The delivery and everything that it triggered are durable."""

    delivery_id: str
    event_ids: list[int]
    """One for each output of the source."""
    number: int
    """The number of the delivery within its source, counted from 1."""
    duplicate: bool = False
    """It was delivered before; this is the recorded reply."""
    kept: Literal["paused", "stopped"] | None = None
    """It creates its tasks later: a person paused the source, or a full queue stops it."""


class WebhookReply(Reply, frozen=True, kw_only=True):
    path: str
    secret: str
    rotation: int
    signature_header: str
    delivery_header: str
    previous_until: datetime | None = None
    """Until then the previous secret is valid as well."""


class DeliveryRow(Reply, frozen=True, kw_only=True):
    number: int
    delivery_id: str
    content_type: str
    size_bytes: int
    body_hash: str
    received_at: datetime


class DeliveriesPage(Reply, frozen=True, kw_only=True):
    deliveries: list[DeliveryRow]
    next: str | None = None
