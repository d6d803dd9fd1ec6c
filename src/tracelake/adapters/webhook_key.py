"""The WebhookSecrets port on one 0600 file, which holds the master key in hex.

The file is made once and never replaced: a new key would change the secret of every webhook at once.
"""

import secrets
from pathlib import Path

from tracelake.ports.webhook_secrets import MASTER_KEY_BYTES, DerivedSecrets
from tracelake.private_files import create_private, private_directory

FILE_NAME = "webhook.key"


def ensure_webhook_key(directory: Path) -> DerivedSecrets:
    """The secrets of that directory, with a new key if it has none; of several processes that start, one makes it."""
    private_directory(directory)
    path = directory / FILE_NAME
    if not path.exists():
        create_private(path, secrets.token_hex(MASTER_KEY_BYTES) + "\n")
    try:
        return DerivedSecrets(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except ValueError:
        # Made anew it would lock every sender out; somebody has to look.
        raise ValueError(f"{path} does not hold a master key of webhooks") from None
