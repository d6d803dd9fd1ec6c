"""The credentials of a lite stack: key rings, worker and service tokens, secrets of webhooks, the admin token."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracelake.adapters.keyring import PemKeyring
from tracelake.adapters.shared_secrets import SharedSecret, utc_now
from tracelake.adapters.webhook_key import ensure_webhook_key
from tracelake.ports import WebhookSecrets
from tracelake.private_files import write_private
from tracelake.settings import Settings
from tracelake.settings.configs import user_token_rules
from tracelake.settings.home import CredentialFiles, Home
from tracelake.tokens import jws
from tracelake.tokens.users import UserTokenRules, user_payload
from tracelake.wire.contract import Role
from tracelake.wire.tokens import MAX_TOKEN_DAYS

__all__ = ["ADMIN_LIFE", "LiteCredentials", "admin_token", "prepare", "user_token"]

ADMIN_LIFE = timedelta(days=MAX_TOKEN_DAYS)


@dataclass(frozen=True, slots=True)
class LiteCredentials:
    task_keys: PemKeyring
    user_keys: PemKeyring
    worker: SharedSecret
    service: SharedSecret
    metrics: SharedSecret
    webhooks: WebhookSecrets

    @classmethod
    def ensure(cls, keys: Path) -> "LiteCredentials":
        now = utc_now()
        return cls(
            task_keys=PemKeyring.ensure(keys / "task", now),
            user_keys=PemKeyring.ensure(keys / "user", now, longest_token=ADMIN_LIFE + timedelta(hours=1)),
            worker=SharedSecret.ensure(keys, "worker"),
            service=SharedSecret.ensure(keys, "service"),
            metrics=SharedSecret.ensure(keys, "metrics"),
            webhooks=ensure_webhook_key(keys),
        )


def prepare(settings: Settings, home: Home) -> CredentialFiles:
    """Make what is missing, and a fresh admin token; answers where the tokens are."""
    credentials = LiteCredentials.ensure(home.keys)
    admin = home.keys / "admin.jwt"
    rules = user_token_rules(settings)
    write_private(admin, admin_token(credentials.user_keys, settings.org, utc_now(), rules) + "\n")
    return CredentialFiles(
        worker_token=credentials.worker.token_file,
        service_token=credentials.service.token_file,
        admin_token=admin,
    )


def user_token(
    keys: PemKeyring,
    rules: UserTokenRules,
    *,
    subject: str,
    org: str,
    roles: Sequence[str],
    now: datetime,
    life: timedelta = ADMIN_LIFE,
    dags: Sequence[str] | None = None,
    read_dags: Sequence[str] | None = None,
    token_id: str | None = None,
) -> str:
    """A token of the stack's own. The ring serves a retired key for the longest life, and no longer."""
    if life > ADMIN_LIFE:
        raise ValueError("no user token outlives the key that signs it")
    payload = user_payload(
        rules,
        subject=subject,
        org=org,
        roles=roles,
        issued=int(now.timestamp()),
        expires=int((now + life).timestamp()),
        token_id=token_id,
        dags=dags,
        read_dags=read_dags,
    )
    kid = keys.current_kid(now)
    return jws.encode(payload, kid, lambda message: keys.sign(kid, message))


def admin_token(keys: PemKeyring, org: str, now: datetime, rules: UserTokenRules) -> str:
    return user_token(keys, rules, subject="admin", org=org, roles=[Role.ADMIN, Role.WRITER, Role.READER], now=now)
