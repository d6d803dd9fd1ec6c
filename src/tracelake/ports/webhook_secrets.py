"""The WebhookSecrets port: what the senders of a webhook sign with.

Secrets are derived from one master key and stored nowhere; a rotation is the next number. How they follow from the key
is part of the port, so that moving a key to another adapter changes no secret.
"""

import base64
import hashlib
import hmac
from typing import Protocol
from uuid import UUID

MASTER_KEY_BYTES = 32


class WebhookSecrets(Protocol):
    def secret(self, org_id: UUID, dag: str, job: str, rotation: int) -> str: ...


class DerivedSecrets:
    """From a key in memory."""

    def __init__(self, master_key: bytes) -> None:
        if len(master_key) != MASTER_KEY_BYTES:
            raise ValueError(f"a master key of webhooks has {MASTER_KEY_BYTES} bytes")
        self._master_key = master_key

    def secret(self, org_id: UUID, dag: str, job: str, rotation: int) -> str:
        """43 characters of base64url. Names hold no colon, so no two sources have the same text."""
        name = f"webhook:{org_id}:{dag}:{job}:{rotation}"
        digest = hmac.new(self._master_key, name.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
