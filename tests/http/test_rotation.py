"""Keys and shared tokens rotate under load: nothing that was issued is refused before its time.

Rotations are made by other instances on the same files, as `trace keys rotate` does from another process.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any

import jwt
import pytest

from tests.http.support import CAPABILITY, NOWHERE, SERVICE, WORKER, Claimed, claimed
from tests.support.dispatcher import DispatcherHarness, Reply
from tests.support.postgres import wait_until
from tracelake.adapters.keyring import LONGEST_TOKEN, PemKeyring
from tracelake.adapters.shared_secrets import SharedSecret

LEAD = 300.0


@pytest.fixture(scope="module")
def second(harness: DispatcherHarness) -> Iterator[DispatcherHarness]:
    """Another Dispatcher on the same databases and the same keys."""
    other = DispatcherHarness.start(harness.state_dsn, harness.queue_dsn, harness.home)
    try:
        yield other
    finally:
        other.stop()


def advance(harness: DispatcherHarness, second: DispatcherHarness, seconds: float) -> None:
    harness.advance(seconds)
    second.advance(0)  # it looks at the same clock


def store_now(harness: DispatcherHarness) -> datetime:
    now: datetime = harness.sql("SELECT trace_now() AS now")[0]["now"]
    return now


def rotate_keys(harness: DispatcherHarness, lead: float = LEAD) -> str:
    return PemKeyring(harness.home / "keys/task").rotate(store_now(harness), lead_seconds=lead)


def rotate_secret(harness: DispatcherHarness, name: str, overlap: float) -> str:
    SharedSecret(harness.home / "keys", name).rotate(store_now(harness), overlap_seconds=overlap)
    return (harness.home / "keys" / f"{name}.token").read_text().strip()


def jwks(harness: DispatcherHarness) -> list[str]:
    return [key["kid"] for key in harness.call("task", "GET", "/internal/jwks/task").body["keys"]]


def kid(token: str) -> str:
    found: str = jwt.get_unverified_header(token)["kid"]
    return found


def fresh_token(harness: DispatcherHarness, task: Claimed) -> str:
    reply = harness.worker("POST", "/internal/task-token", task.body())
    assert reply.status == 200, reply
    token: str = reply.body["capability_token"]
    return token


def beat(harness: DispatcherHarness, task: Claimed, token: str) -> Reply:
    return harness.task("heartbeat", token, task.body())


def long_task(harness: DispatcherHarness) -> Claimed:
    week = 7 * 24 * 3600
    limits = {"timeout_seconds": week, "heartbeat_timeout_seconds": week}
    return claimed(harness, harness.make_job("long", limits=limits))


def test_a_key_comes_signs_retires_and_goes(harness: DispatcherHarness, second: DispatcherHarness) -> None:
    task = long_task(harness)
    old = kid(task.token)
    new = rotate_keys(harness)
    for dispatcher in (harness, second):
        assert jwks(dispatcher)[-2:] == [old, new]
        assert kid(fresh_token(dispatcher, task)) == old, "the coming key does not sign yet"
    advance(harness, second, LEAD + 1)
    for dispatcher in (harness, second):
        token = fresh_token(dispatcher, task)
        assert kid(token) == new
        for verifier in (harness, second):
            assert beat(verifier, task, token).status == 200
            assert beat(verifier, task, task.token).status == 200, "issued before, still alive"
            assert old in jwks(verifier)
    advance(harness, second, LONGEST_TOKEN.total_seconds())
    for dispatcher in (harness, second):
        assert jwks(dispatcher) == [new]
        assert beat(dispatcher, task, task.token).code == "credential_expired"
    rotate_keys(harness)
    assert old not in {path.stem.partition("_")[2] for path in (harness.home / "keys/task").iterdir()}
    advance(harness, second, LEAD + 1)


def test_a_dispatcher_that_nobody_asks_for_keys_notices_too(
    harness: DispatcherHarness, second: DispatcherHarness
) -> None:
    """Minting looks by itself: neither the key document nor an unknown key is needed for it."""
    task = long_task(harness)
    new = rotate_keys(harness)
    advance(harness, second, LEAD + 1)
    wait_until(lambda: kid(fresh_token(second, task)) == new, "the second Dispatcher to sign with the new key")
    assert beat(harness, task, fresh_token(second, task)).status == 200


def test_an_unknown_key_makes_a_verifier_look(harness: DispatcherHarness, second: DispatcherHarness) -> None:
    task = long_task(harness)
    new = rotate_keys(harness)
    advance(harness, second, LEAD + 1)
    wait_until(lambda: kid(fresh_token(harness, task)) == new, "the new key to sign")
    token = fresh_token(harness, task)
    assert beat(second, task, token).status == 200, "the other one never saw this key before"
    # Rubbish is limited to one look a second; a new key is then known at the latest when that second is over.
    forged = jwt.encode({}, harness.credentials.task_keys._keys[new].private, "ES256", headers={"kid": "0" * 16})
    assert beat(second, task, forged).code == "credential_unknown_key"
    newest = rotate_keys(harness)
    advance(harness, second, LEAD + 1)
    wait_until(lambda: kid(fresh_token(harness, task)) == newest, "the newest key to sign")
    token = fresh_token(harness, task)
    wait_until(lambda: beat(second, task, token).status == 200, "the other Dispatcher to look again")


def test_tokens_of_a_key_that_was_given_up_are_refused(harness: DispatcherHarness, second: DispatcherHarness) -> None:
    """Also those that a Dispatcher has verified before, and remembers."""
    task = long_task(harness)
    for dispatcher in (harness, second):
        assert beat(dispatcher, task, task.token).status == 200
    PemKeyring(harness.home / "keys/task").replace(store_now(harness))

    def refused(dispatcher: DispatcherHarness) -> bool:
        reply = beat(dispatcher, task, task.token)
        return reply.status == 401 and reply.code == "credential_unknown_key"

    for dispatcher in (harness, second):
        wait_until(partial(refused, dispatcher), "the tokens of the old key to be refused")


@pytest.mark.parametrize("name", ["worker", "service"])
def test_shared_tokens_overlap(harness: DispatcherHarness, second: DispatcherHarness, name: str) -> None:
    header, path = (WORKER, "/internal/task-claim") if name == "worker" else (SERVICE, "/internal/task-introspect")

    def status(dispatcher: DispatcherHarness, token: str) -> int:
        return dispatcher.call("internal", "POST", path, {}, {header: token}).status

    old = (harness.home / "keys" / f"{name}.token").read_text().strip()
    # Somebody keeps sending rubbish: that must not delay the first use of the new token.
    assert [status(each, "rubbish") for each in (harness, second)] == [401, 401]
    new = rotate_secret(harness, name, overlap=60)
    assert new != old
    for dispatcher in (harness, second):
        assert (status(dispatcher, new), status(dispatcher, old)) == (422, 422)
        assert status(dispatcher, "rubbish") == 401
    newest = rotate_secret(harness, name, overlap=600)
    advance(harness, second, 59)
    assert {status(each, token) for each in (harness, second) for token in (old, new, newest)} == {422}
    advance(harness, second, 2)
    for dispatcher in (harness, second):
        assert status(dispatcher, old) == 401, "a later rotation does not lengthen an overlap"
        assert (status(dispatcher, new), status(dispatcher, newest)) == (422, 422)
    advance(harness, second, 600)
    assert [status(each, token) for each in (harness, second) for token in (new, newest)] == [401, 422, 401, 422]


def test_rotation_without_overlap_ends_the_old_token_at_once(
    harness: DispatcherHarness, second: DispatcherHarness
) -> None:
    leaked = harness.worker_token
    rotate_secret(harness, "worker", overlap=0)
    advance(harness, second, 1)
    body = {"task_id": NOWHERE, "worker_id": "w"}

    def refused(dispatcher: DispatcherHarness) -> bool:
        return dispatcher.call("internal", "POST", "/internal/task-claim", body, {WORKER: leaked}).status == 401

    for dispatcher in (harness, second):
        # Nobody has sent the new token yet: a Dispatcher must notice by itself.
        wait_until(partial(refused, dispatcher), "the leaked token to be refused")
        assert dispatcher.worker("POST", "/internal/task-claim", body).status == 200


class Load:
    """Callers on every credential, on both Dispatchers, until told to stop."""

    def __init__(self, dispatchers: list[DispatcherHarness], task: Claimed) -> None:
        self.task = task
        self.answers: Counter[tuple[str, int]] = Counter()
        self.kids: set[str] = set()
        self._stop = False
        self._running: list[Future[Any]] = [
            asyncio.run_coroutine_threadsafe(caller(each), each.background.loop)
            for each in dispatchers
            for caller in (self._claims, self._introspects, self._beats, self._beats)
        ]

    def let_pass(self, rounds: int) -> None:
        """Until every kind of call was answered so many more times, or one of them failed."""
        goal = {kind: self._count(kind) + rounds for kind in ("claim", "introspect", "beat")}
        wait_until(
            lambda: self.refused() != {} or all(self._count(kind) >= wanted for kind, wanted in goal.items()),
            "the callers to go on",
        )

    def refused(self) -> dict[tuple[str, int], int]:
        return {answer: count for answer, count in self.answers.copy().items() if answer[1] != 200}

    def stop(self) -> None:
        self._stop = True
        for future in self._running:
            future.result(60)

    def _count(self, kind: str) -> int:
        return self.answers[(kind, 200)]

    async def _claims(self, dispatcher: DispatcherHarness) -> None:
        body = {"task_id": NOWHERE, "worker_id": "w"}
        while not self._stop:
            token = dispatcher.worker_token  # a caller reads the file before each call, as wrappers do
            reply = await dispatcher.call_async("internal", "POST", "/internal/task-claim", body, {WORKER: token})
            self.answers[("claim", reply.status)] += 1

    async def _introspects(self, dispatcher: DispatcherHarness) -> None:
        body = {"task_id": self.task.task_id, "attempt": 1}
        kept = dispatcher.service_token
        while not self._stop:
            for token in (dispatcher.service_token, kept):  # the old one for as long as it overlaps
                path, headers = "/internal/task-introspect", {SERVICE: token}
                reply = await dispatcher.call_async("internal", "POST", path, body, headers)
                self.answers[("introspect", reply.status)] += 1

    async def _beats(self, dispatcher: DispatcherHarness) -> None:
        first = self.task.token
        while not self._stop:
            headers = {WORKER: dispatcher.worker_token}
            reply = await dispatcher.call_async("internal", "POST", "/internal/task-token", self.task.body(), headers)
            self.answers[("token", reply.status)] += 1
            for token in (reply.body.get("capability_token", ""), first):
                beat = await dispatcher.call_async(
                    "task", "POST", "/v1/task/heartbeat", self.task.body(), {CAPABILITY: token}
                )
                self.answers[("beat", beat.status)] += 1
                if token:
                    self.kids.add(kid(token))


def test_nobody_is_refused_while_everything_rotates(harness: DispatcherHarness, second: DispatcherHarness) -> None:
    load = Load([harness, second], long_task(harness))
    rotated = set()
    try:
        for _ in range(4):
            rotated.add(rotate_keys(harness))
            rotate_secret(harness, "worker", overlap=24 * 3600)
            rotate_secret(harness, "service", overlap=24 * 3600)
            load.let_pass(10)
            advance(harness, second, LEAD + 1)
            load.let_pass(10)
            assert load.refused() == {}
        wait_until(lambda: rotated & load.kids != set(), "tokens by a new key")
    finally:
        load.stop()
    assert load.refused() == {}
