"""The credentials of a lite stack: key rings, worker and service tokens, and the admin's user token."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from tracelake.adapters.lite.files import write_private
from tracelake.adapters.lite.keyring import PemKeyring
from tracelake.adapters.lite.shared_secrets import SharedSecret, utc_now
from tracelake.dispatcher.tokens import jws
from tracelake.dispatcher.users import AUDIENCE, UserClaims
from tracelake.processes.home import CredentialFiles, Home
from tracelake.processes.settings import Settings

ADMIN_LIFE = timedelta(days=30)
ISSUER = "trace"


@dataclass(frozen=True, slots=True)
class LiteCredentials:
    task_keys: PemKeyring
    user_keys: PemKeyring
    worker: SharedSecret
    service: SharedSecret

    @classmethod
    def ensure(cls, keys: Path) -> "LiteCredentials":
        now = utc_now()
        return cls(
            task_keys=PemKeyring.ensure(keys / "task", now),
            user_keys=PemKeyring.ensure(keys / "user", now, longest_token=ADMIN_LIFE + timedelta(hours=1)),
            worker=SharedSecret.ensure(keys, "worker"),
            service=SharedSecret.ensure(keys, "service"),
        )


def prepare(settings: Settings, home: Home) -> CredentialFiles:
    """Make what is missing, and a fresh admin token; answers where the tokens are."""
    credentials = LiteCredentials.ensure(home.keys)
    admin = home.keys / "admin.jwt"
    write_private(admin, admin_token(credentials.user_keys, settings.org, utc_now()) + "\n")
    return CredentialFiles(
        worker_token=credentials.worker.token_file,
        service_token=credentials.service.token_file,
        admin_token=admin,
    )


def admin_token(keys: PemKeyring, org: str, now: datetime) -> str:
    claims = UserClaims(
        iss=ISSUER,
        aud=AUDIENCE,
        sub="admin",
        iat=int(now.timestamp()),
        exp=int((now + ADMIN_LIFE).timestamp()),
        org=org,
        roles=["admin", "writer", "reader"],
    )
    kid = keys.current_kid(now)
    return jws.encode(msgspec.json.encode(claims), kid, lambda message: keys.sign(kid, message))
