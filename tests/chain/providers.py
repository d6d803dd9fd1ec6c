"""Nodes as providers run them: their limits, and their own words when they refuse.

A `Provider` is a fault of `tests/support/chain.py` (`chain.inject(Provider(profile, clock), times=None)`): a real HTTP
server answers, within the limits of a profile. Time is a `VirtualClock` that client and server share, so that a pace is
measured without waiting for it.
"""

import json
import threading
from dataclasses import dataclass, field
from typing import Any

from tests.chain.faults import Call, _Base, _gone, _right, _transport, calls_of
from tracelake.demo.chain.app import ChainApp, Receive, Scope, Send

Json = dict[str, Any]
RECEIPTS = "eth_getBlockReceipts"


class VirtualClock:
    """Sleeping moves it on. With several threads asleep at a time, it moves on by the sum of what they sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


@dataclass(frozen=True)
class Reply:
    """What a provider sends: a JSON-RPC error, or any text."""

    status: int = 200
    code: int = 0
    words: str = ""
    text: str | None = None
    as_list: bool = False
    """The error alone in a list, with the id of the first call."""
    retry_after: str | None = None

    def error(self) -> Json:
        return {"code": self.code, "message": self.words}

    def body(self, first_id: Any) -> bytes:
        if self.text is not None:
            return self.text.encode()
        known = {"id": first_id} if self.as_list or self.status not in (200, 400) else {"id": None}
        whole = {"jsonrpc": "2.0", **known, "error": self.error()}
        return json.dumps([whole] if self.as_list else whole).encode()


@dataclass(frozen=True)
class Profile:
    name: str
    most_batch: int | None = None
    batch_reply: Reply = field(default_factory=Reply)
    drops_batches: bool = False
    """A batch that is too large ends the connection."""
    calls_per_second: float | None = None
    requests_per_second: float | None = None
    limit_reply: Reply = field(default_factory=Reply)
    limits_items: bool = False
    """Calls beyond the limit are refused one by one, the others of the batch are answered."""
    most_items: int | None = None
    """Only the first of a batch are answered ..."""
    item_reply: Reply | None = None
    """... and the others have this error, or none at all."""
    missing: Reply | None = None
    """What is said to `eth_getBlockReceipts`."""
    late: Reply | str | None = None
    """A block that is asked for the first time is not there yet: an error with {number}, or "null"."""
    late_methods: tuple[str, ...] = ("eth_getBlockByNumber", RECEIPTS)
    flaky: Reply | None = None
    flaky_every: int = 10
    text_ids: bool = False
    always: Reply | None = None


class Bucket:
    """As many as a second gives may come at once."""

    def __init__(self, per_second: float | None, clock: VirtualClock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = max(1.0, per_second or 0.0)
        self._seen = clock()

    def take(self, count: int, *, partly: bool = False) -> int:
        """How many of these pass: all or none, unless `partly`."""
        if self._per_second is None:
            return count
        now = self._clock()
        self._left = min(max(1.0, self._per_second), self._left + (now - self._seen) * self._per_second)
        self._seen = now
        passing = min(count, int(self._left + 1e-9)) if partly else count if self._left + 1e-9 >= count else 0
        self._left -= passing
        return passing


class Provider(_Base):
    def __init__(self, profile: Profile, clock: VirtualClock, latency: float = 0.02) -> None:
        self.profile = profile
        self.requests = 0
        self.batches = 0
        self.refused = 0
        """Requests of which something was refused."""
        self.answered: list[Call] = []
        self.log: list[tuple[float, int]] = []
        """When each request came, and how many calls it had."""
        self._clock = clock
        self._latency = latency
        self._calls = Bucket(profile.calls_per_second, clock)
        self._requests = Bucket(profile.requests_per_second, clock)
        self._seen: set[tuple[str, str]] = set()

    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        calls = calls_of(body)
        is_batch = body.lstrip()[:1] == b"["
        self.log.append((self._clock.now, len(calls)))
        self.requests += 1
        self.batches += is_batch
        self._clock.sleep(self._latency)
        if self.profile.drops_batches and self._is_too_large(calls, is_batch):
            self.refused += 1
            _transport(send).abort()
            await _gone()
            return
        reply = self._refusal(calls, is_batch)
        if reply is not None:
            self.refused += 1
            await _send(send, reply, reply.body(calls[0].id if calls else None))
            return
        answers = await self._answers(app, scope, calls)
        for answer in answers if self.profile.text_ids else []:
            answer["id"] = str(answer["id"])
        error = answers[0].get("error") if answers and not is_batch else None
        status = self._status_of(error)
        await _send(send, Reply(status=status), json.dumps(answers if is_batch else answers[0]).encode())

    def _is_too_large(self, calls: list[Call], is_batch: bool) -> bool:
        most = self.profile.most_batch
        return most is not None and is_batch and (most == 0 or len(calls) > most)

    def _refusal(self, calls: list[Call], is_batch: bool) -> Reply | None:
        profile = self.profile
        if profile.always is not None:
            return profile.always
        if profile.flaky is not None and self.requests % profile.flaky_every == 0:
            return profile.flaky
        if self._is_too_large(calls, is_batch):
            return profile.batch_reply
        if not self._requests.take(1):
            return profile.limit_reply
        if not profile.limits_items and not self._calls.take(len(calls)):
            return profile.limit_reply
        return None

    async def _answers(self, app: ChainApp, scope: Scope, calls: list[Call]) -> list[Json]:
        profile = self.profile
        passing = self._calls.take(len(calls), partly=True) if profile.limits_items else len(calls)
        errors: dict[Any, Json | None] = {}
        for place, call in enumerate(calls):
            if place >= passing:
                errors[call.id] = {"error": profile.limit_reply.error()}
            elif profile.most_items is not None and place >= profile.most_items:
                errors[call.id] = None if profile.item_reply is None else {"error": profile.item_reply.error()}
            elif profile.missing is not None and call.method == RECEIPTS:
                errors[call.id] = {"error": profile.missing.error()}
            elif self._is_late(call):
                errors[call.id] = self._late_answer(call)
        good = [call for call in calls if call.id not in errors]
        self.answered += good
        self.refused += len(good) < len(calls)
        asked = [{"jsonrpc": "2.0", "id": one.id, "method": one.method, "params": one.params} for one in good]

        async def again() -> Json:
            return {"type": "http.request", "body": json.dumps(asked).encode()}

        answers = {one["id"]: one for one in json.loads((await _right(app, scope, again))[1])} if asked else {}
        for known, outcome in errors.items():
            if outcome is not None:
                answers[known] = {"jsonrpc": "2.0", "id": known, **outcome}
        return [answers[call.id] for call in calls if call.id in answers]

    def _is_late(self, call: Call) -> bool:
        if self.profile.late is None or call.method not in self.profile.late_methods:
            return False
        asked = (call.method, call.params[0])
        first = asked not in self._seen
        self._seen.add(asked)
        return first

    def _late_answer(self, call: Call) -> Json:
        late = self.profile.late
        if not isinstance(late, Reply):
            return {"result": None}
        return {"error": {"code": late.code, "message": late.words.format(number=int(call.params[0], 16))}}

    def _status_of(self, error: Json | None) -> int:
        for reply in (self.profile.missing, self.profile.limit_reply):
            if error is not None and reply is not None and error == reply.error():
                return reply.status
        return 200


async def _send(send: Send, reply: Reply, body: bytes) -> None:
    kind = b"application/json" if body[:1] in (b"[", b"{") else b"text/html"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if reply.retry_after is not None:
        headers.append((b"retry-after", reply.retry_after.encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


PAGE = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"
BUSY = "Your app has exceeded its compute units per second capacity. Retries can be safely ignored."
MONTH = (
    "Monthly capacity limit exceeded. Visit https://dashboard.example.com/settings/billing to upgrade your scaling"
    " policy for continued service."
)

COMPLETING = [
    Profile("plain"),
    # Limits of calls: each call of a batch counts.
    Profile(
        "25 calls a second, items refused", calls_per_second=25, limits_items=True, limit_reply=Reply(200, 429, BUSY)
    ),
    Profile(
        "15 calls a second, items refused",
        calls_per_second=15,
        limits_items=True,
        limit_reply=Reply(429, -32007, "15/second request limit reached - reduce calls per second or upgrade"),
    ),
    Profile("15 calls a second, requests refused", calls_per_second=15, limit_reply=Reply(429, 429, BUSY)),
    Profile("one call at a time", calls_per_second=1, limit_reply=Reply(429, -32005, "rate limit exceeded")),
    Profile("over rate limit", calls_per_second=20, limit_reply=Reply(200, -32016, "over rate limit")),
    # Limits of requests: a batch is one.
    Profile(
        "10 requests a second",
        requests_per_second=10,
        limit_reply=Reply(429, -32005, "project ID request rate exceeded"),
    ),
    Profile(
        "2 requests a second with Retry-After",
        requests_per_second=2,
        limit_reply=Reply(429, text="Too many requests", retry_after="1"),
    ),
    Profile(
        "a wait in words",
        requests_per_second=4,
        limit_reply=Reply(429, -32090, "Too many requests, reason: call rate limit exhausted, retry in 3s"),
    ),
    Profile("busy", requests_per_second=5, limit_reply=Reply(503, text="busy", retry_after="1")),
    # Limits of batches.
    Profile("at most 10", most_batch=10, batch_reply=Reply(200, -32014, "maximum 10 calls in 1 batch")),
    Profile(
        "at most 3",
        most_batch=3,
        batch_reply=Reply(500, 31, "Batch of more than 3 requests are not allowed on free tier, register an account"),
    ),
    Profile("at most 6", most_batch=6, batch_reply=Reply(200, -32600, "batch too large", as_list=True)),
    Profile("at most 7", most_batch=7, batch_reply=Reply(200, -32005, "Batch size limit exceeded.")),
    Profile("at most 8", most_batch=8, batch_reply=Reply(400, -32005, "Number of requests exceeds max batch size")),
    Profile("at most 9", most_batch=9, batch_reply=Reply(413, text="Payload Too Large")),
    Profile("at most 5, else it hangs up", most_batch=5, drops_batches=True),
    # No batches.
    Profile(
        "no batches by name",
        most_batch=0,
        batch_reply=Reply(200, -32005, "Batched requests are not supported by this server"),
    ),
    Profile("batches disabled", most_batch=0, batch_reply=Reply(400, -32202, "Batch requests are disabled")),
    Profile("400 to a batch", most_batch=0, batch_reply=Reply(400, text="Bad Request")),
    Profile("500 to a batch", most_batch=0, batch_reply=Reply(500, text="Internal Server Error")),
    Profile("invalid request", most_batch=0, batch_reply=Reply(200, -32600, "Invalid Request")),
    Profile("internal error to a batch", most_batch=0, batch_reply=Reply(200, -32603, "Internal error")),
    # Partial answers.
    Profile("answers 7 of a batch", most_items=7),
    Profile("answers are too large", most_items=4, item_reply=Reply(200, -32003, "response too large")),
    # Methods.
    Profile(
        "no receipts by block",
        missing=Reply(200, -32601, "the method eth_getBlockReceipts does not exist/is not available"),
    ),
    Profile("not whitelisted", missing=Reply(403, -32000, "rpc method is not whitelisted")),
    Profile(
        "not in the plan",
        missing=Reply(200, -32000, "eth_getBlockReceipts is not included in your current plan, please upgrade"),
    ),
    Profile("disabled", missing=Reply(403, -32001, "eth_getBlockReceipts is disabled")),
    Profile("blocked", missing=Reply(200, -32004, "this method has been blocked")),
    Profile("not supported", missing=Reply(200, -32004, "method eth_getBlockReceipts not supported")),
    Profile("receipts of a block are too large", missing=Reply(200, -32008, "Response is too big")),
    # Late blocks.
    Profile("null at first", late="null"),
    Profile("not yet", late=Reply(200, -32000, "block {number} is not available on this backend yet")),
    Profile("does not exist yet", late=Reply(200, -32001, "block {number} does not exist")),
    Profile("receipts come later", late=Reply(200, -32000, "block {number} not found"), late_methods=(RECEIPTS,)),
    Profile("header not found", late=Reply(200, -32000, "header not found")),
    # Trouble on the way.
    Profile("502 to each tenth", flaky=Reply(502, text=PAGE)),
    Profile("500 to each fourth", flaky=Reply(500, -32603, "internal error"), flaky_every=4),
    Profile("a page to each fifth", flaky=Reply(200, text=PAGE), flaky_every=5),
    Profile("ids as text", text_ids=True),
    Profile(
        "all of it",
        most_batch=0,
        batch_reply=Reply(400, -32202, "Batch requests are disabled"),
        calls_per_second=12,
        limit_reply=Reply(429, -32605, "IP Rate limit exceeded on eth_getBlockByNumber"),
        missing=Reply(200, -32601, "Method not found"),
        late="null",
        late_methods=("eth_getBlockByNumber",),
        flaky=Reply(502, text=PAGE),
        text_ids=True,
    ),
]
FINAL = [
    Profile("402", always=Reply(402, text='{"error": "Payment Required: your balance is empty"}')),
    Profile("402 without words", always=Reply(402, text="")),
    Profile("403 and the month", always=Reply(403, -32600, MONTH)),
    Profile("429 and the month", always=Reply(429, 429, MONTH)),
    Profile("200 and the month", always=Reply(200, -32000, MONTH)),
    Profile("credits", always=Reply(200, -32000, "You have run out of credits: insufficient credits on your account")),
]
