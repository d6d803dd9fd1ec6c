"""The keys of an identity provider whose user tokens a stack accepts."""

from pathlib import Path

from tracelake.adapters.jwks import JwksFile, JwksUrl
from tracelake.settings import Settings
from tracelake.tokens.jwks import JwksKeys


def open_user_keys(settings: Settings) -> JwksKeys | None:
    """None: user tokens are those that the stack signs itself."""
    if settings.user_jwks is None:
        return None
    if isinstance(settings.user_jwks, Path):
        return JwksKeys(JwksFile(settings.user_jwks), again_seconds=1.0, stale_seconds=1.0)
    cache = settings.jwks_cache_seconds
    return JwksKeys(JwksUrl(settings.user_jwks), again_seconds=cache / 10, stale_seconds=cache)
