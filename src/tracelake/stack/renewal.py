"""Renewal of what ends by itself while a stack runs: the server certificate and the admin token.

A round that fails (a full disk, a file with wrong permissions) is repeated after a wait that doubles from a minute to
an hour, for as long as it takes. What happened last is in `run/renewal.json`: `trace status` shows a failure, and a
Dispatcher counts it in `trace_credential_renewal_failures`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tracelake.model.backoff import Backoff
from tracelake.settings.home import Home, write_private

logger = logging.getLogger(__name__)

RENEW_SECONDS = 12 * 3600.0
_RETRY = Backoff(60.0, 3600.0)
_sleep = asyncio.sleep


class RenewalState(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the last rounds; times are seconds since the epoch."""

    failures: int = 0
    """Rounds that failed since the last one that succeeded."""
    error: str = ""
    renewed_at: float | None = None
    failed_at: float | None = None

    def describe_failure(self) -> str | None:
        """The failure for people; None if the last round succeeded."""
        if not self.failures:
            return None
        since = "" if self.renewed_at is None else f" since {datetime.fromtimestamp(self.renewed_at, UTC):%F %T} UTC"
        return (
            f"The certificate and the admin token could not be renewed{since} ({self.error}; tried {self.failures} "
            "times). It is tried again by itself; see whether the disk is full and whether HOME/keys and HOME/tls can "
            "be written."
        )


class CredentialRenewal:
    """`renew` makes what is nearly over anew; `on_failure` is told the first time that it cannot."""

    def __init__(
        self,
        home: Home,
        renew: Callable[[], None],
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        self._home = home
        self._renew = renew
        self._on_failure = on_failure
        self._state = RenewalState(renewed_at=time.time())

    async def run(self) -> None:
        """Renews for ever; nothing that a round raises ends it."""
        self._write()
        pause = RENEW_SECONDS
        while True:
            await _sleep(pause)
            pause = await self.run_once()

    async def run_once(self) -> float:
        """Runs one round; returns the seconds to wait for the next."""
        now = time.time()
        try:
            await asyncio.to_thread(self._renew)
        except Exception as error:
            failures = self._state.failures + 1
            reason = _describe(error)
            logger.error("credentials could not be renewed (failure %d): %s", failures, reason)
            self._state = RenewalState(
                failures=failures, error=reason, renewed_at=self._state.renewed_at, failed_at=now
            )
            if failures == 1:
                self._on_failure(self._state.describe_failure() or "")
            self._write()
            return _RETRY.seconds(failures)
        if self._state.failures:
            logger.warning("credentials are renewed again after %d failures", self._state.failures)
        self._state = RenewalState(renewed_at=now)
        self._write()
        return RENEW_SECONDS

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            write_private(self._home.renewal_file, msgspec.json.encode(self._state))


def _describe(error: Exception) -> str:
    """The error without its text, which may quote a key."""
    detail = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}: {detail}" if detail else type(error).__name__


def read_renewal(path: Path) -> RenewalState:
    """The state that the supervisor last wrote; one without failures if there is none, as without `trace up`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RenewalState)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return RenewalState()
