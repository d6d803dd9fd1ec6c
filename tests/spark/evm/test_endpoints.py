"""Where nodes are is read from the environment, and never shown whole."""

import pickle

import pytest

from tracelake.spark.evm.endpoints import (
    RpcEndpoint,
    from_environment,
    parse_endpoint,
    resolve,
    resolve_announcers,
)
from tracelake.spark.evm.errors import NoEndpointError


@pytest.mark.parametrize(
    ("url", "label", "path"),
    [
        ("http://localhost", "http://localhost:80", "/"),
        ("https://node.example/v3/key", "https://node.example:443", "/v3/key"),
        (" https://node.example:8545/?key=1 ", "https://node.example:8545", "/?key=1"),
        ("http://[::1]:8545/", "http://[::1]:8545", "/"),
        ("https://user:pass@node.example/", "https://node.example:443", "/"),
    ],
)
def test_addresses(url: str, label: str, path: str) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.label, endpoint.path) == (label, path)
    assert repr(endpoint) == f"<RpcEndpoint {label}>"
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


def test_a_name_and_a_password_become_a_header() -> None:
    assert parse_endpoint("http://Aladdin:open%20sesame@host").authorization == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


def test_what_may_be_a_key() -> None:
    endpoint = parse_endpoint("https://someone:passw0rd@node.example/v3/k3y-of-mine?token=t0ken&b=1")
    assert {"someone", "passw0rd", "k3y-of-mine", "t0ken"} <= set(endpoint.secrets)
    assert not {"v3", "b", "1", ""} & set(endpoint.secrets)


@pytest.mark.parametrize("url", ["", "node:8545", "ws://node", "http://", "http://node:notaport", "http://node/a b"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="RPC address") as caught:
        parse_endpoint(url)
    assert "node" not in str(caught.value)


def test_names_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_RPC_MAIN_NET", "http://one/, https://two/key,,http://one/")
    found = from_environment("main_net")
    assert found == (RpcEndpoint("http", "one", 80, "/"), RpcEndpoint("https", "two", 443, "/key"))
    monkeypatch.setenv("TRACE_RPC_MAIN_NET", "https://user:secret@")
    with pytest.raises(NoEndpointError, match="cannot be used: an RPC address must begin") as caught:
        from_environment("main_net")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["nothing_set", "../x", "PATH", ""])
def test_names_that_there_are_not(name: str) -> None:
    with pytest.raises(NoEndpointError):
        from_environment(name)


def test_websockets_stand_among_the_others_and_are_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_RPC_LIVE", "wss://one/ws/key,https://one/key,ws://user:pass@two:8546/")
    assert [endpoint.label for endpoint in resolve("acme", "live")] == ["https://one:443"]
    announcers = resolve_announcers("acme", "live")
    assert [endpoint.label for endpoint in announcers] == ["wss://one:443", "ws://two:8546"]
    assert announcers[0].path == "/ws/key"
    assert announcers[1].authorization is not None
    monkeypatch.setenv("TRACE_RPC_LIVE", "wss://one/secret-key")
    with pytest.raises(NoEndpointError, match="a WebSocket only announces blocks") as caught:
        resolve("acme", "live")
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("TRACE_RPC_LIVE", "https://one/")
    assert resolve_announcers("acme", "live") == ()
