"""Repeats a request while its failure may pass: lost connections, 429 and 5xx; as a server asks, or with backoff."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tracelake.catalogue.feeds.addresses import HttpAddress
from tracelake.feeds.errors import FeedError
from tracelake.feeds.exchange import FeedClient, FeedLimits, FeedReply, FeedRequest
from tracelake.model.backoff import Backoff

BACKOFF = Backoff(0.5, 30.0)
_PATH_SHOWN = 200
_MAY_PASS = frozenset({408, 425, 429})
_ADVICE = {
    400: "check `url`, `query` and `body`",
    401: "check the secret",
    403: "check the secret",
    404: "check `url`",
    405: "check `method`",
}


@dataclass(eq=False)
class PatientClient:
    client: FeedClient
    limits: FeedLimits
    retry_seconds: float
    until: float
    """On the client's clock, for all pages."""
    wait: Callable[[float], None] = time.sleep
    retries: int = 0

    def fetch(self, request: FeedRequest) -> FeedReply:
        """An answer of 200 or 204. Raises FeedError once trying again is of no use."""
        clock = self.client.clock
        give_up = min(self.until, clock() + self.retry_seconds)
        tries = 0
        while True:
            try:
                return _accepted(self.client.ask(request, self.limits, self.until), request.address)
            except FeedError as error:
                if error.final:
                    raise
                tries += 1
                pause = BACKOFF.seconds(tries) if error.retry_after is None else error.retry_after
                if clock() + pause > give_up:
                    raise FeedError(f"{error} (tried {tries} times)") from None
                self.retries += 1
                self.wait(pause)


def _accepted(reply: FeedReply, address: HttpAddress) -> FeedReply:
    status = reply.status
    if status in (200, 204):
        return reply
    text = f"{_describe(address)} answered {status}"
    if status in _MAY_PASS or status >= 500:
        raise FeedError(text, retry_after=reply.retry_after)
    advice = _ADVICE.get(status)
    raise FeedError(text if advice is None else f"{text}: {advice}", final=True)


def _describe(address: HttpAddress) -> str:
    """The address without its query, which may hold a secret."""
    path = address.target.partition("?")[0]
    short_path = path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}..."
    return f"{address.scheme}://{address.authority}{short_path}"
