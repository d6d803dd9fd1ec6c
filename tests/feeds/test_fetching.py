"""Requests made from a unit, and pages: found, bounded, never taken twice."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.feeds.support import FeedServer, reply
from tracelake.catalogue import read_config
from tracelake.catalogue.http_fetch import HttpFetchConfig
from tracelake.feeds.errors import FeedError
from tracelake.feeds.exchange import FeedClient, FeedLimits
from tracelake.feeds.fetching import FeedFetch, FeedUnit, first_request, next_link
from tracelake.feeds.hosts import FeedHosts
from tracelake.feeds.mapping import RowMapper
from tracelake.feeds.retrying import PatientClient

SECRETS = {"KEY": "key-abcdef"}


class Rows:
    """Rows that came out of a mapper."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    @property
    def all(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def config_of(**fields: Any) -> HttpFetchConfig:
    config = read_config("http_fetch", {"columns": {"n": "int64"}, **fields})
    assert isinstance(config, HttpFetchConfig)
    return config


def fetch(hosts: FeedHosts, config: HttpFetchConfig, unit: FeedUnit | None = None) -> list[dict[str, Any]]:
    rows = Rows()
    mapper = RowMapper(config, rows, None, blocks=(0, 9))
    client = FeedClient(hosts)
    limits = FeedLimits(config.max_bytes, config.max_redirects, 20.0, open_ended=config.format == "json")
    patient = PatientClient(client, limits, 0.001, client.clock() + 60, lambda _seconds: None)
    FeedFetch(config, unit or FeedUnit(start=0, end=9), SECRETS, patient, mapper, lambda _text: None).run()
    mapper.finish()
    return rows.all


def numbers(hosts: FeedHosts, config: HttpFetchConfig) -> list[int]:
    return [row["n"] for row in fetch(hosts, config)]


def page(*values: int, **more: Any) -> bytes:
    return reply(json.dumps({"rows": [{"n": value} for value in values], **more}))


# --- pages


def test_links_in_the_document(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", page(1, 2, next="/b?c=d"))
    server.on("/b", page(3, next=f"{server.url}/c"))
    server.on("/c", page(4, next=None))
    config = config_of(
        url=f"{server.url}/a",
        rows="rows",
        paging={"kind": "link", "path": "next"},
        query={"key": {"secret": "KEY"}, "once": "1"},
        headers={"X-Key": {"secret": "KEY"}},
    )
    assert numbers(hosts, config) == [1, 2, 3, 4]
    assert [call.target for call in server.calls] == [
        "/a?key=key-abcdef&once=1",
        "/b?c=d&key=key-abcdef",
        "/c?key=key-abcdef",
    ]
    assert {call.headers["x-key"] for call in server.calls} == {"key-abcdef"}


def test_links_in_the_header(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", reply('[{"n":1}]', headers={"link": '</z>; rel="last", </b>; rel="next"'}))
    server.on("/b", reply('[{"n":2}]', headers={"link": '</a>; rel="prev"'}))
    assert numbers(hosts, config_of(url=f"{server.url}/a", paging={"kind": "link"})) == [1, 2]


@pytest.mark.parametrize(
    ("header", "link"),
    [
        (None, None),
        ("", None),
        ("<a>; rel=next", "a"),
        ('<a>; rel="prev next"', "a"),
        ('<a>; title="rel=next"; rel=prev', None),
        ('<a>; rel="nextish", <b>; rel="NEXT"', "b"),
        ("<a>; rel=nextish", None),
        ("nonsense", None),
        ('<a,b>; rel="x", <c>; rel="next"', "c"),
    ],
)
def test_the_header_link(header: str | None, link: str | None) -> None:
    assert next_link(header) == link


def test_cursors(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", page(1, meta={"next": "x&y"}))
    server.on("/a?lang=en&cursor=x%26y", page(2, meta={"next": 17}))
    server.on("/a?lang=en&cursor=17", page(3, meta={}))
    paging = {"kind": "cursor", "path": "meta.next", "parameter": "cursor"}
    assert numbers(hosts, config_of(url=f"{server.url}/a?lang=en", rows="rows", paging=paging)) == [1, 2, 3]


def test_page_numbers_and_offsets(server: FeedServer, hosts: FeedHosts) -> None:
    for number, answer in ((0, page(1, 2)), (2, page(3)), (4, page())):
        server.on(f"/a?offset={number}", answer)
    paging = {"kind": "page", "parameter": "offset", "first": 0, "step": 2}
    assert numbers(hosts, config_of(url=f"{server.url}/a?offset=9", rows="rows", paging=paging)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("following", "reason"),
    [
        ("/a", "names itself, or an earlier page"),
        ("http://127.0.0.1:1/b", "another host"),
        ("https://a.example/", "another host"),
        ("http://user@127.0.0.1/", "cannot be called"),
        ("file:///etc/passwd", "cannot be called"),
        ({"a": 1}, "expected text"),
    ],
)
def test_links_that_are_not_followed(server: FeedServer, hosts: FeedHosts, following: Any, reason: str) -> None:
    server.on("/a", page(1, next=following))
    config = config_of(url=f"{server.url}/a", rows="rows", paging={"kind": "link", "path": "next"})
    with pytest.raises(FeedError, match=reason) as error:
        fetch(hosts, config)
    assert error.value.final


def test_pages_and_rows_have_a_limit(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", page(1))
    paging = {"kind": "page", "parameter": "p"}
    with pytest.raises(FeedError, match=r"more than 3 pages.*nothing was written"):
        fetch(hosts, config_of(url=f"{server.url}/a", rows="rows", paging=paging, max_pages=3))
    assert len(server.calls) == 3
    with pytest.raises(FeedError, match="more than 2 rows"):
        fetch(hosts, config_of(url=f"{server.url}/a", rows="rows", paging=paging, max_rows=2))


# --- content


def test_csv_with_nulls_and_places(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", reply('\ufeffday;close price;note\r\n2026-01-31;1.50;\r\n2026-02-01;;"a;""b"\r\n'.encode()))
    columns = {
        "day": "date",
        "close": {"path": "close price", "type": "decimal(10,2)", "nullable": True},
        "note": "text",
        "row": {"path": "@row", "type": "int64"},
        "unit": {"path": "@end", "type": "int32"},
    }
    rows = fetch(hosts, config_of(url=f"{server.url}/a", format="csv", delimiter=";", columns=columns))
    assert [(str(row["day"]), str(row["close"]), row["note"], row["row"], row["unit"]) for row in rows] == [
        ("2026-01-31", "1.50", "", 1, 9),
        ("2026-02-01", "None", 'a;"b', 2, 9),
    ]


def test_values_of_the_document_and_keys_of_members(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", reply('{"at": 1700000000123, "prices": {"eth": {"usd": 1.5}, "btc": {"usd": 2}}}'))
    columns = {
        "coin": {"path": "@key", "type": "text"},
        "usd": "float64",
        "at": {"path": "$.at", "type": "timestamp", "unit": "millis"},
    }
    rows = fetch(hosts, config_of(url=f"{server.url}/a", rows="prices.*", columns=columns))
    assert [(row["coin"], row["usd"], row["at"].microsecond) for row in rows] == [
        ("eth", 1.5, 123000),
        ("btc", 2.0, 123000),
    ]


def test_rows_outside_of_the_unit_are_refused(server: FeedServer, hosts: FeedHosts) -> None:
    """Readers ask for the blocks of a unit: such a row would never be seen."""
    server.on("/a", reply('[{"block_number": 3}, {"block_number": 10}]'))
    with pytest.raises(FeedError, match="row 2: block_number: 10 is not in the unit, 0 to 9"):
        fetch(hosts, config_of(url=f"{server.url}/a", columns={"block_number": "int64"}))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply("<html>", headers={"content-type": "text/html; charset=utf-8"}), "expected json, received text/html"),
        (reply("[]", headers={"content-type": "application/json; charset=gb2312"}), "says that it is gb2312"),
        (reply('{"error": "none"}'), "row 1: n: is missing"),
        (reply("[{}"), "cannot be read: it is not JSON"),
        (reply(b"\xff\xfe[]"), "it is not utf-8"),
    ],
)
def test_wrong_content(server: FeedServer, hosts: FeedHosts, answer: bytes, reason: str) -> None:
    server.on("/a", answer)
    with pytest.raises(FeedError, match=reason) as error:
        fetch(hosts, config_of(url=f"{server.url}/a"))
    assert not error.value.final, "another attempt may get another page"


def test_no_content_is_no_rows(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/a", b"HTTP/1.1 204 No Content\r\n\r\n")
    assert fetch(hosts, config_of(url=f"{server.url}/a")) == []


# --- requests


def test_a_body_is_filled_with_typed_values(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/graphql", reply("[]"))
    body = {
        "query": "{ pool(id: 1) { price } }",
        "variables": {"from": "{start}", "day": "{end_date}", "n": ["{end_millis}"]},
    }
    unit = FeedUnit(start=5, end=1_700_000_000)
    fetch(hosts, config_of(url=f"{server.url}/graphql", method="POST", body=body), unit)
    (call,) = server.calls
    assert json.loads(call.body) == {
        "query": "{ pool(id: 1) { price } }",
        "variables": {"from": 5, "day": "2023-11-14", "n": [1_700_000_000_000]},
    }
    assert (call.method, call.headers["content-type"]) == ("POST", "application/json")


@pytest.mark.parametrize(
    ("url", "unit", "reason"),
    [
        ("/{partition_key}", FeedUnit(start=1, end=2), "the unit is a cursor"),
        ("/{start}", FeedUnit(partition_key="x"), "not a range"),
        ("/{end_time}", FeedUnit(start=0, end=2**62), "no time in seconds"),
        ("/{partition_key}/x", FeedUnit(partition_key=".."), "cannot be called"),
    ],
)
def test_units_that_a_request_cannot_name(url: str, unit: FeedUnit, reason: str) -> None:
    with pytest.raises(FeedError, match=reason) as error:
        first_request(config_of(url=f"https://a.example{url}"), unit, {})
    assert error.value.final


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "ä", " a", ""])
def test_a_secret_that_no_header_holds(value: str) -> None:
    config = config_of(url="https://a.example/", headers={"X-Key": {"secret": "KEY"}})
    with pytest.raises(FeedError, match="the secret KEY has characters") as error:
        first_request(config, FeedUnit(start=0, end=1), {"KEY": value})
    assert not value.strip() or value not in str(error.value)


def test_requests_show_nothing() -> None:
    config = config_of(url="https://a.example/x", headers={"X-Key": {"secret": "KEY"}}, query={"k": {"secret": "KEY"}})
    assert "abcdef" not in repr(first_request(config, FeedUnit(start=0, end=1), SECRETS))
