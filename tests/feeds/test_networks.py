"""Which addresses a feed may call: a table, hosts whose answers change, and hosts that the operator names."""

import ipaddress
from collections.abc import Sequence

import pytest

from tracelake.catalogue.feeds.addresses import parse_address
from tracelake.feeds.dialling import find_addresses
from tracelake.feeds.errors import FeedError, FeedRefusedError
from tracelake.feeds.hosts import FeedHosts, hosts_of, parse_entry
from tracelake.feeds.networks import IpAddress, is_own, refusal_of

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.255",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "192.175.48.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2002:808:808::1",
    "2620:4f:8000::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "2a00:1450::5efe:7f00:1",
    "2a00:1450::200:5efe:a00:1",
    "4000::1",
    "e000::1",
]
ALLOWED = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "192.167.255.255",
    "192.169.0.1",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2003::1",
    "2400:cb00::1",
    "2606:4700::1111",
    "2a00:1450:4001::1",
    "3ffe::1",
]
PUBLIC = FeedHosts()


@pytest.mark.parametrize("text", REFUSED)
def test_no_feed_calls(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert refusal_of(address)
    with pytest.raises(FeedRefusedError, match="may not be called"):
        find("http://feed.example/", [address])


@pytest.mark.parametrize("text", ALLOWED)
def test_a_feed_may_call(text: str) -> None:
    assert refusal_of(ipaddress.ip_address(text)) is None


def test_the_table_is_as_strict_as_python() -> None:
    """Whatever this version of Python does not call global is in the table."""
    for first in range(256):
        for second in (0, 1, 16, 31, 51, 64, 88, 113, 127, 168, 175, 254, 255):
            address = ipaddress.IPv4Address(f"{first}.{second}.0.77")
            assert address.is_global or refusal_of(address) is not None


def find(url: str, answers: Sequence[IpAddress], hosts: FeedHosts = PUBLIC) -> list[IpAddress]:
    return find_addresses(parse_address(url), hosts, lambda _host, _port, _seconds: answers, 1.0)


def test_one_refused_address_refuses_the_host() -> None:
    public, private = ipaddress.ip_address("1.1.1.1"), ipaddress.ip_address("10.0.0.1")
    assert find("https://feed.example/", [public]) == [public]
    with pytest.raises(FeedRefusedError, match="it has an address that is private"):
        find("https://feed.example/", [public, private])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:169.254.169.254]", "169.254.169.254", "[fd00:ec2::254]"]
)
def test_an_address_in_the_place_of_a_name_is_checked_too(host: str) -> None:
    with pytest.raises(FeedRefusedError):
        find(f"http://{host}/latest/meta-data/", [ipaddress.ip_address("1.1.1.1")])


def test_the_machine_is_not_called_by_its_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("1.1.1.1"))
    monkeypatch.setattr("tracelake.feeds.dialling.is_own", lambda address: str(address) == "1.1.1.1")
    with pytest.raises(FeedRefusedError, match="of the machine itself"):
        find("http://feed.example/", [ipaddress.ip_address("1.1.1.1")])


@pytest.mark.parametrize("port", [22, 25, 5432, 6379, 8080, 9200, 65535])
def test_only_the_usual_ports(port: int) -> None:
    with pytest.raises(FeedRefusedError, match=f"the port is {port}, and feeds call 80, 443"):
        find(f"http://feed.example:{port}/", [ipaddress.ip_address("1.1.1.1")])


@pytest.mark.parametrize(
    ("place", "entry"),
    [("127.0.0.1:18999", "acme@127.0.0.1:18999"), ("10.1.2.3", "acme@10.1.2.3:80"), ("[::1]:8080", "acme@[::1]:8080")],
)
def test_the_refusal_names_the_setting_that_helps(place: str, entry: str) -> None:
    unnamed = hosts_of("acme", [], public=True)
    with pytest.raises(FeedRefusedError) as refusal:
        find(f"http://{place}/", [], unnamed)
    assert f"`feed_hosts`: restart the stack with `trace up --set feed_hosts={entry}`" in str(refusal.value)
    assert "feed_ports" not in str(refusal.value), "it lets nobody call a private address"
    named = hosts_of("acme", [entry], public=True)
    assert find(f"http://{place}/", [], named), "the advice works"
    with pytest.raises(FeedRefusedError, match=r"`feed_ports`.*`feed_hosts`.*=acme@prices.internal:18999`"):
        find("http://prices.internal:18999/", [], unnamed)


def test_a_named_host_belongs_to_its_org_and_port() -> None:
    entries = ["acme@prices.internal:8080", "acme@10.0.0.9:80", "other@[fd00::1]:443"]
    private = [ipaddress.ip_address("10.1.2.3")]
    acme, other = (hosts_of(org, entries, public=True) for org in ("acme", "other"))
    assert find("http://prices.internal:8080/", private, acme) == private
    assert find("http://10.0.0.9/", [], acme)
    assert find("https://[fd00::1]/", [], other)
    for url, hosts in (
        ("http://prices.internal:8080/", other),
        ("http://prices.internal:8081/", acme),
        ("http://prices.internal/", acme),
        ("http://10.0.0.9:8080/", acme),
        ("https://[fd00::1]/", acme),
    ):
        with pytest.raises(FeedRefusedError):
            find(url, private, hosts)


@pytest.mark.parametrize("answer", ["169.254.169.254", "0.0.0.0", "224.0.0.1", "fe80::1", "::ffff:169.254.169.254"])
def test_the_name_of_a_private_host_never_leads_to_metadata(answer: str) -> None:
    hosts = hosts_of("acme", ["acme@prices.internal:80"], public=True)
    with pytest.raises(FeedRefusedError):
        find("http://prices.internal/", [ipaddress.ip_address(answer)], hosts)


def test_a_stack_may_call_named_hosts_alone() -> None:
    hosts = hosts_of("acme", ["acme@prices.internal:80"], public=False)
    with pytest.raises(FeedRefusedError, match="feed_hosts"):
        find("https://feed.example/", [ipaddress.ip_address("1.1.1.1")], hosts)
    assert find("http://prices.internal/", [ipaddress.ip_address("1.1.1.1")], hosts)


@pytest.mark.parametrize(
    "entry", ["prices.internal:80", "acme@:80", "acme@host", "acme@host:0", "acme@host:99999", "@h:1"]
)
def test_an_entry_that_is_none(entry: str) -> None:
    with pytest.raises(ValueError, match=r"write entries like acme@prices\.internal:8080"):
        parse_entry(entry)


def test_a_name_that_nobody_knows_may_be_known_later() -> None:
    def unknown(_host: str, _port: int, _seconds: float) -> Sequence[IpAddress]:
        raise OSError

    with pytest.raises(FeedError, match="cannot be found: the name is not known") as error:
        find_addresses(parse_address("http://feed.example/"), PUBLIC, unknown, 1.0)
    assert not error.value.final
