"""Webhooks from the delivery to the task: what is taken, and how often."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.support import Refusals, user_token
from tests.sources.webhook_support import BODY, Hook, running, send_together
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.dispatcher.sources.webhook_deliveries import unit_of_body
from tracelake.model.ids import new_id
from tracelake.wire.units import EventIn


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    with running(cluster, tmp_path_factory.mktemp("home")) as (dispatcher,):
        yield dispatcher


def test_a_delivery_becomes_an_event_and_a_task(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    reply = hook.sent()
    (event,) = hook.events()
    assert reply == {"delivery_id": "one", "event_ids": hook.event_ids(), "number": 1}
    assert (event["producer"], event["cursor"], event["state"]) == ("webhook:one", 1, "Routed")
    assert hook.tasks() == [{"cursor": {"after": -1, "to": 1}}]
    (kept,) = hook.deliveries()
    assert (kept["delivery_id"], kept["number"], kept["body"]) == ("one", 1, BODY)


def test_every_output_has_its_event(harness: DispatcherHarness) -> None:
    hook = Hook(harness, outputs=3).deploy()
    reply = hook.sent()
    assert reply["event_ids"] == hook.event_ids()
    assert len({event["dataset_uuid"] for event in hook.events()}) == 3
    assert hook.sent() == reply | {"duplicate": True}


@pytest.mark.parametrize(
    ("body", "cursor", "key"),
    [
        (b'{"cursor": 41}', 41, None),
        (b'{"cursor": 0, "other": {"range": 1}}', 0, None),
        (b'{"range": {"start": 3, "end": 9}}', None, "3-9"),
        (b'{"partition_key": "2026-01-31"}', None, "2026-01-31"),
        (b'{"partition_key": "%s"}' % (b"k" * 512), None, "k" * 512),
        # Not exactly one, or none of ours: the number of the delivery.
        (b'{"cursor": 41, "partition_key": "a"}', 1, None),
        (b'{"cursor": 41, "range": null}', 1, None),
        (b'{"cursor": "eyJvZmZzZXQiOjF9"}', 1, None),
        (b'{"cursor": true}', 1, None),
        (b'{"cursor": 1.5}', 1, None),
        (b'{"cursor": -1}', 1, None),
        (b'{"cursor": 9223372036854775808}', 1, None),
        (b'{"range": {"start": 9, "end": 3}}', 1, None),
        (b'{"range": {"start": 3}}', 1, None),
        (b'{"range": {"start": 3, "end": 9, "step": 1}}', 1, None),
        (b'{"range": [3, 9]}', 1, None),
        (b'{"partition_key": ""}', 1, None),
        (b'{"partition_key": 7}', 1, None),
        (b'{"partition_key": "a\\u0000b"}', 1, None),
        (b'{"partition_key": "\\ud800"}', 1, None),
        ('{"partition_key": "%s"}' % ("\u00e9" * 257), 1, None),
        (b'{"partition_key": "%s"}' % (b"k" * 513), 1, None),
        (b'{"data": {"cursor": 41}}', 1, None),
        (b'[{"cursor": 41}]', 1, None),
        (b'{"cursor": 41', 1, None),
        (b"41", 1, None),
        (b"", 1, None),
        (b"\0\0", 1, None),
        (b"\xff\xfe", 1, None),
        (b'{"cursor": 41, "name": "\xff"}', None, None),
        (b"[" * 100_000, 1, None),
        (b'{"a":' * 40_000, 1, None),
        (b"payload=%7B%22cursor%22%3A41%7D", 1, None),
    ],
)
def test_the_unit_of_a_delivery(
    harness: DispatcherHarness, body: bytes | str, cursor: int | None, key: str | None
) -> None:
    hook = Hook(harness).deploy()
    data = body.encode() if isinstance(body, str) else body
    assert hook.sent(data)["number"] == 1
    (event,) = hook.events()
    (kept,) = hook.deliveries()
    assert kept["body"] == data
    if cursor is None and key is None:  # whether bytes that are no text can be JSON is the parser's to say
        return
    assert (event["cursor"], event["partition_key"]) == (cursor, key)
    assert len(hook.tasks()) == 1


@given(body=st.one_of(st.binary(max_size=60), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.dictionaries(st.sampled_from(["cursor", "range", "partition_key", "start", "end"]), inner),
).map(lambda value: json.dumps(value).encode())), number=st.integers(1, 2**63 - 1))  # fmt: skip
def test_any_body_has_a_unit_that_an_event_can_have(body: bytes, number: int) -> None:
    unit = unit_of_body(body, number)
    event = EventIn(dataset_uuid=new_id(), dataset_version=new_id(), **unit)
    decoded = msgspec.json.decode(msgspec.json.encode(event), type=EventIn)
    assert decoded == event, "it fits every limit of an event"
    assert "\0" not in (event.partition_key or "")


def test_numbers_count_on(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    numbers = [hook.sent(b"%d" % number, f"d{number}")["number"] for number in range(5)]
    assert numbers == [1, 2, 3, 4, 5]
    assert [event["cursor"] for event in hook.events()] == numbers
    assert [task["cursor"]["to"] for task in hook.tasks()] == numbers


# --- again


def test_the_same_delivery_again_is_a_duplicate(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    first = hook.sent()
    with Refusals(harness):
        secret = hook.quiet_secret()
        assert hook.sent(secrets=[secret]) == first | {"duplicate": True}
        assert hook.sent(secrets=[secret], ahead=60) == first | {"duplicate": True}, "signed anew, and still the same"
    assert hook.sent(delivery="two")["number"] == 2, "the same body is no duplicate by itself"


def test_another_body_under_the_same_id_is_a_conflict(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    hook.sent()
    secret = hook.quiet_secret()
    with Refusals(harness) as refusals:
        for body in (BODY + b" ", b"", BODY[:-1]):
            refusals.check(hook.send(body, secrets=[secret]), 422, "delivery_conflict")
    assert hook.sent()["duplicate"]


def test_ids_are_of_one_source(harness: DispatcherHarness) -> None:
    one, other = Hook(harness).deploy(), Hook(harness).deploy()
    assert one.sent()["event_ids"] != other.sent(b"other")["event_ids"]


def test_what_was_delivered_stays_known_through_versions(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    first = hook.sent()
    hook.path += "-moved"
    hook.deploy()
    assert hook.sent() == first | {"duplicate": True}
    assert hook.sent(delivery="two")["number"] == 2


# --- at once


def test_one_delivery_twenty_times_at_once_is_one_event(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    replies = send_together([harness], hook, [("one", BODY)] * 20)
    assert {reply.status for reply in replies} == {200}
    assert sorted(reply.body.get("duplicate", False) for reply in replies) == [False] + [True] * 19
    assert len({tuple(reply.body["event_ids"]) for reply in replies}) == 1
    assert (len(hook.events()), len(hook.tasks()), len(hook.deliveries())) == (1, 1, 1)


def test_different_deliveries_at_once_have_numbers_without_gaps(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    replies = send_together([harness], hook, [(f"d{number}", b"%d" % number) for number in range(30)])
    assert sorted(reply.body["number"] for reply in replies) == list(range(1, 31))
    assert sorted(event["cursor"] for event in hook.events()) == list(range(1, 31))


def test_two_bodies_under_one_id_at_once(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    replies = send_together([harness], hook, [("one", b"%d" % (number % 2)) for number in range(10)])
    assert sorted(reply.status for reply in replies) == [200] * 5 + [422] * 5
    assert len(hook.events()) == 1


# --- seeing


def test_deliveries_are_listed_newest_first_without_their_bodies(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    for number in range(5):
        hook.sent(b"%d" % number, f"d{number}")
    page = hook.user("GET", "/deliveries?limit=2", "reader").body
    assert [row["number"] for row in page["deliveries"]] == [5, 4]
    assert set(page["deliveries"][0]) == {
        "number", "delivery_id", "content_type", "size_bytes", "body_hash", "received_at",
    }  # fmt: skip
    assert page["deliveries"][0]["size_bytes"] == 1
    found = [row["delivery_id"] for row in page["deliveries"]]
    while "next" in page:
        page = hook.user("GET", f"/deliveries?limit=2&cursor={page['next']}", "reader").body
        found += [row["delivery_id"] for row in page["deliveries"]]
    assert found == ["d4", "d3", "d2", "d1", "d0"]


def test_a_body_comes_back_as_it_was_sent_and_as_a_file(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    body = b"<script>\0\xff\r\n"
    head = list((hook.head(body, "a/b:c@d") | {"content-type": "text/html"}).items())
    sent = harness.run(
        harness.clients["public"].request("POST", hook.where, body=body, headers=head[:2], content_type="text/html")
    )
    assert sent.status == 200
    for name in ("a/b:c@d", "1"):
        reply = hook.raw(f"/deliveries/{name}")
        assert (reply.status, reply.body) == (200, body)
    status, lines = raw_head(hook, "/deliveries/1")
    assert status == 200
    assert lines["content-type"] == "text/html"
    assert lines["content-disposition"] == "attachment"
    assert lines["x-content-type-options"] == "nosniff"
    assert lines["cache-control"] == "no-store"
    assert hook.user("GET", "/deliveries/2", "writer").code == "delivery_not_found"
    assert hook.user("GET", "/deliveries/1", "reader").code == "role_forbidden"


def raw_head(hook: Hook, path: str) -> tuple[int, dict[str, str]]:
    """Status and headers of a reply."""
    client = hook.harness.clients["public"]
    context = ssl.create_default_context(cafile=str(hook.harness.tls.ca))
    token = user_token(hook.harness, org=hook.org, roles=["writer"])
    connection = http.client.HTTPSConnection(client._host, client._port, context=context, timeout=20)
    with closing(connection):
        where = f"/v1/dags/{hook.dag}/jobs/{hook.job}{path}"
        connection.request("GET", where, headers={"authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        reply.read()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}


def test_an_id_that_is_a_number_comes_before_the_number(harness: DispatcherHarness) -> None:
    hook = Hook(harness).deploy()
    hook.sent(b"first", "2")
    hook.sent(b"second", "x?#%")
    assert hook.raw("/deliveries/2").body == b"first"
    assert hook.raw("/deliveries/1").body == b"first"


@pytest.mark.parametrize("path", ["/webhook", "/deliveries", "/deliveries/one"])
def test_another_org_sees_none_of_it(harness: DispatcherHarness, path: str) -> None:
    hook = Hook(harness).deploy()
    hook.sent()
    stranger = Hook(harness)
    nobodys = Hook(harness, org=stranger.org, dag="nowhere")
    assert stranger.user("GET", path) == nobodys.user("GET", path)
    assert stranger.user("GET", path).status == 404
    assert hook.user("GET", path).status == 200
    Hook(harness, org=stranger.org, dag="other").deploy()
    assert stranger.user("GET", path) == nobodys.user("GET", path)
    with Refusals(harness):
        assert stranger.user("POST", "/webhook/rotate").status == 404
