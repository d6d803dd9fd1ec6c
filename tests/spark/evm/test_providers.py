"""Every kind of provider is read to the end, at the pace that it allows, with the rows that a plain node gives."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.chain.faults import Call
from tests.chain.providers import COMPLETING, FINAL, PAGE, RECEIPTS, Profile, Provider, Reply
from tests.spark.evm.support import STRETCH, expected, visit
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.spark.evm.chunk import stretches
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.errors import (
    AbandonedError,
    QuotaExhaustedError,
    RateLimitedError,
    RefusedError,
    RpcError,
    UnavailableError,
)
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.node_pool import RpcPool, head_of

TABLES = ("blocks", "transactions", "logs")
BLOCKS = 120
PROFILES = {profile.name: profile for profile in COMPLETING}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as chain:
        yield chain


@pytest.mark.parametrize("name", PROFILES)
def test_every_provider_is_read_to_the_end(served: ServedChain, name: str) -> None:
    profile = PROFILES[name]
    with visit(served, profile) as guest:
        assert guest.read(BLOCKS) == expected(recorded(BLOCKS))
    provider = guest.provider
    asked = len(provider.answered)
    by_calls = asked / (profile.calls_per_second or float("inf"))
    by_requests = -(-asked // 20) / (profile.requests_per_second or float("inf"))
    ideal = max(by_calls, by_requests) + 0.02 * provider.requests
    assert guest.seconds < 2.5 * ideal + 15, f"{guest.seconds:.0f} s, and {ideal:.0f} s are possible"
    assert provider.refused < 0.5 * provider.requests + 10


@pytest.mark.parametrize("profile", FINAL, ids=lambda profile: profile.name)
def test_what_only_a_payment_changes_is_not_tried_again(served: ServedChain, profile: Profile) -> None:
    with visit(served, profile) as guest, pytest.raises(QuotaExhaustedError) as caught:
        guest.read(BLOCKS)
    assert guest.provider.requests == 1
    text = str(caught.value)
    assert text.endswith("check the plan and the payment of this endpoint")
    assert profile.always is not None
    if profile.always.words:
        assert profile.always.words[:30] in text
    if profile.name == "402":
        assert "HTTP status 402 (Payment Required: your balance is empty)" in text
    assert not [secret for secret in ("k3y-of-mine", "passw0rd", "https://") if secret in text]


def test_another_node_stands_in_for_one_that_is_not_paid(served: ServedChain) -> None:
    with serve_chain(BLOCKS) as unpaid, visit(served, PROFILES["plain"]) as guest:
        unpaid.inject(Provider(FINAL[0], guest.clock), times=None)
        both = [parse_endpoint(unpaid.url), parse_endpoint(served.url)]
        guest.pool = RpcPool(both, guest.pool.options, clock=guest.clock, sleep=guest.clock.sleep)
        assert guest.read(STRETCH) == expected(recorded(BLOCKS)[:STRETCH])


def test_web_pages_are_not_asked_for_to_the_end(served: ServedChain) -> None:
    page = Profile("page", always=Reply(200, text=PAGE))
    with (
        visit(served, page) as guest,
        pytest.raises(UnavailableError, match="a web page instead of JSON: check"),
    ):
        guest.read(BLOCKS)
    assert guest.provider.requests == 3


def test_the_words_of_a_refusal_are_quoted(served: ServedChain) -> None:
    profile = Profile("403", always=Reply(403, -32600, "Unauthorized: must be authenticated! key k3y-of-other"))
    with visit(served, profile) as guest, pytest.raises(RefusedError, match=r"403.*\(Unauthorized: must be authent"):
        guest.read(BLOCKS)
    assert guest.provider.requests == 1


@pytest.mark.parametrize("limit", [3.0, 10.0, 60.0])
def test_calls_are_paced(served: ServedChain, limit: float) -> None:
    with visit(served, PROFILES["plain"], calls_per_second=limit) as guest:
        assert guest.read(STRETCH) == expected(recorded(BLOCKS)[:STRETCH])
    log = guest.provider.log
    for start, _ in log:
        calls = sum(count for at, count in log if start <= at < start + 0.999)
        assert calls <= limit * 1.21, "one batch more at most, which is a fifth of a second's calls"
    assert guest.seconds < 1.3 * sum(count for _, count in log) / limit + 1


def test_nothing_that_was_answered_is_asked_for_again(served: ServedChain) -> None:
    for name in ("25 calls a second, items refused", "502 to each tenth", "answers are too large", "not yet"):
        with visit(served, PROFILES[name]) as guest:
            guest.read(BLOCKS)
        asked = [(call.method, str(call.params)) for call in guest.provider.answered]
        assert len(asked) == len(set(asked)), name


def test_failures_of_a_server_do_not_make_batches_smaller(served: ServedChain) -> None:
    with visit(served, PROFILES["502 to each tenth"]) as guest:
        guest.read(BLOCKS)
    assert guest.pool.nodes[0].batch_size == 20


def test_the_wait_that_a_provider_asks_for_is_kept(served: ServedChain) -> None:
    profile = Profile("slow", requests_per_second=1, limit_reply=Reply(429, text="", retry_after="7"))
    with visit(served, profile) as guest:
        guest.read(STRETCH)
    gaps = [after[0] - before[0] for before, after in pairwise(guest.provider.log)]
    assert max(gaps) >= 7
    assert guest.provider.refused <= 3


@pytest.mark.parametrize("name", ["null at first", "not yet", "does not exist yet", "receipts come later"])
def test_a_late_block_is_not_a_missing_method(served: ServedChain, name: str) -> None:
    with visit(served, PROFILES[name]) as guest:
        guest.read(BLOCKS)
    assert {call.method for call in guest.provider.answered} <= {"eth_chainId", "eth_getBlockByNumber", RECEIPTS}
    assert not guest.pool.nodes[0].lacks(RECEIPTS)


def test_a_method_that_was_refused_once_is_not_missing(served: ServedChain) -> None:
    with visit(served, PROFILES["blocked"]) as guest:
        ordinary = guest.provider.profile

        def unblock(calls: list[Call]) -> None:
            if calls[0].method == RECEIPTS:
                refusals.append(calls)
                guest.provider.profile = ordinary if len(refusals) == 1 else PROFILES["plain"]

        refusals: list[list[Call]] = []
        served.watch(unblock)
        try:
            assert guest.read(BLOCKS) == expected(recorded(BLOCKS))
        finally:
            served._watchers.clear()
    assert "eth_getTransactionReceipt" not in {call.method for call in guest.provider.answered}


def test_a_missing_method_is_asked_for_again_later(served: ServedChain) -> None:
    with visit(served, PROFILES["no receipts by block"]) as guest:
        guest.read(STRETCH)
        guest.provider.profile = PROFILES["plain"]
        guest.read(STRETCH)
        assert RECEIPTS not in {call.method for call in guest.provider.answered}
        guest.clock.now += 3600
        guest.provider.answered.clear()
        guest.read(STRETCH)
        assert RECEIPTS in {call.method for call in guest.provider.answered}
        assert "eth_getTransactionReceipt" not in {call.method for call in guest.provider.answered}


def test_batches_are_tried_again_later(served: ServedChain) -> None:
    with visit(served, PROFILES["no batches by name"]) as guest:
        guest.read(STRETCH)
        guest.provider.profile = PROFILES["plain"]
        assert guest.pool.nodes[0].batch_size == 1
        guest.clock.now += 3600
        guest.read(STRETCH)
        assert guest.pool.nodes[0].batch_size == 20


def test_single_calls_are_objects(served: ServedChain) -> None:
    with visit(served, PROFILES["plain"], batch_size=1) as guest:
        assert guest.read(STRETCH) == expected(recorded(BLOCKS)[:STRETCH])
        assert head_of(guest.pool) == BLOCKS - 1
    assert guest.provider.batches == 0


def test_late_blocks_do_not_use_up_tries_while_others_come(served: ServedChain) -> None:
    with visit(served, PROFILES["null at first"], tries=2) as guest:
        assert guest.read(BLOCKS) == expected(recorded(BLOCKS))


def test_a_later_failure_does_not_shorten_a_wait(served: ServedChain) -> None:
    with visit(served, PROFILES["plain"]) as guest:
        (node,) = guest.pool.nodes
        node.failed(RateLimitedError("slow down", retry_after=100.0))
        node.failed(UnavailableError("lost"))
        assert node.rests_until >= guest.clock.now + 100
        guest.read(1)
    assert guest.provider.log[0][0] >= 1100


def test_work_that_nobody_wants_any_more_ends(served: ServedChain) -> None:
    stop = threading.Event()
    closed = Profile("closed", always=Reply(429, text="", retry_after="100"))
    with visit(served, closed) as guest:
        served.watch(lambda _calls: stop.set())
        try:
            with pytest.raises(AbandonedError):
                fetch(guest.pool, range(STRETCH), TABLES, stop)
        finally:
            served._watchers.clear()
    assert guest.provider.requests == 1
    assert guest.seconds < 1, "it does not wait before it looks"


@pytest.mark.parametrize(
    "name", ["plain", "25 calls a second, items refused", "10 requests a second", "500 to a batch", "not yet"]
)
def test_several_streams_share_what_is_known_of_a_node(served: ServedChain, name: str) -> None:
    with visit(served, PROFILES[name]) as guest:
        read = list(stretches(guest.pool, 0, BLOCKS - 1, TABLES))
    wanted = expected(recorded(BLOCKS))
    for table in TABLES:
        assert [row for stretch in read for row in stretch.tables[table].to_pylist()] == wanted[table]


def test_a_limit_that_never_ends_is_an_error_in_the_end(served: ServedChain) -> None:
    profile = Profile("closed", always=Reply(429, -32005, "rate limit exceeded"))
    with visit(served, profile) as guest, pytest.raises(RpcError, match="rate limit exceeded"):
        guest.read(BLOCKS)
    assert guest.seconds <= 181
