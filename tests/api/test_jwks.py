"""Keys of another issuer: which are believed, where they come from, and when they are looked for again."""

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from tests.api.issuer import NOW, b64, document, ec_jwk, rsa_jwk, signed, verify
from tracelake.adapters.jwks import JwksFile, JwksUrl
from tracelake.processes.identity_provider import open_user_keys
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import dispatcher_config
from tracelake.stack.tls import ensure_tls
from tracelake.tokens.jwks import JwksKeys, read_jwks


def test_keys_that_cannot_be_trusted_are_left_out() -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    other = ec.generate_private_key(ec.SECP256R1())
    p384 = ec.generate_private_key(ec.SECP384R1()).public_key().public_numbers()
    entries = [
        rsa_jwk(short, kid="short"),
        rsa_jwk(kid="weak", e="Aw"),
        rsa_jwk(kid="even", e="AQAC"),
        rsa_jwk(kid="encrypts", use="enc"),
        rsa_jwk(kid="signs", key_ops=["sign"]),
        rsa_jwk(kid=""),
        {name: value for name, value in rsa_jwk().items() if name != "kid"},
        ec_jwk(kid="off the curve", x=b64(b"\1" * 32)),
        ec_jwk(kid="other curve", crv="P-384", x=b64(p384.x.to_bytes(48, "big"))),
        ec_jwk(kid="no text", x=7),
        {"kty": "OKP", "crv": "Ed25519", "kid": "okp", "x": b64(b"\1" * 32)},
        "text",
        rsa_jwk(kid="twice"),
        ec_jwk(other, kid="twice"),
        rsa_jwk(kid="twice"),
        rsa_jwk(kid="good", key_ops=["verify"], alg="RS256"),
        ec_jwk(kid="also good", alg="ES256"),
    ]
    assert sorted(read_jwks(json.dumps({"keys": entries}).encode())) == ["also good", "good"]


@given(
    st.binary(max_size=60)
    | st.dictionaries(st.text(max_size=5), st.text(max_size=5)).map(lambda d: json.dumps(d).encode())
)
def test_anything_else_is_no_document(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a JWKS document"):
        read_jwks(content)


class Source:
    """A document that can change and go away, and counts who asks."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.content: bytes | None = document(*keys)
        self.error: Exception | None = None
        self.asked = 0

    def __call__(self) -> bytes | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.content


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def knows(keys: JwksKeys, kid: str) -> bool:
    return await keys.find(kid, NOW) is not None


def test_an_unknown_key_is_looked_for_but_not_by_everybody() -> None:
    async def check() -> None:
        source, clock = Source(rsa_jwk()), Clock()
        keys = JwksKeys(source, again_seconds=30, stale_seconds=300, monotonic=clock)
        assert not any(await asyncio.gather(*(knows(keys, f"rubbish{number}") for number in range(50))))
        assert source.asked == 1, "all of them waited for one answer"
        assert await knows(keys, "r")
        assert not await knows(keys, "e")
        assert source.asked == 1
        source.content = document(rsa_jwk(), ec_jwk())
        clock.now += 31
        assert await knows(keys, "e"), "the first token of a new key is believed"
        assert source.asked == 2

    asyncio.run(check())


def test_a_key_that_was_given_up_is_forgotten() -> None:
    async def check() -> None:
        source, clock = Source(rsa_jwk(), ec_jwk()), Clock()
        keys = JwksKeys(source, again_seconds=30, stale_seconds=300, monotonic=clock)
        await keys.look()
        source.content = document(ec_jwk())
        clock.now += 299
        assert await knows(keys, "r")
        clock.now += 2
        await knows(keys, "r")  # nobody waits for this look
        await keys.look()
        assert not await knows(keys, "r")

    asyncio.run(check())


@pytest.mark.parametrize("error", [OSError("away"), ValueError("nonsense"), TimeoutError()])
def test_keys_stay_while_their_source_is_away(error: Exception) -> None:
    async def check() -> None:
        source, clock = Source(rsa_jwk()), Clock()
        keys = JwksKeys(source, again_seconds=30, stale_seconds=300, monotonic=clock)
        await keys.look()
        source.error = error
        for _ in range(3):
            clock.now += 1000
            assert not await knows(keys, "e")
            assert await knows(keys, "r")
        source.error, source.content = None, b"<html>"
        clock.now += 1000
        assert not await knows(keys, "e")
        assert await knows(keys, "r")

    asyncio.run(check())


def test_a_file_is_read_again_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    source = JwksFile(path)
    with pytest.raises(FileNotFoundError):
        source()
    path.write_bytes(document(rsa_jwk()))
    assert source() == path.read_bytes()
    assert source() is None
    new = tmp_path / "new.json"
    new.write_bytes(document(rsa_jwk()))
    new.replace(path)
    assert source() is not None, "another file of the same length"
    path.write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(ValueError, match="larger"):
        source()


class Provider(BaseHTTPRequestHandler):
    replies: dict[str, tuple[int, bytes]]

    def do_GET(self) -> None:
        status, body = self.replies[self.path]
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/keys")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    tls = ensure_tls(tmp_path_factory.mktemp("tls"), "127.0.0.1")
    Provider.replies = {
        "/keys": (200, document(rsa_jwk())),
        "/keys?v=1": (200, document(ec_jwk())),
        "/moved": (302, b""),
        "/broken": (500, b"oops"),
        "/huge": (200, b" " * (1024 * 1024 + 1)),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", ssl.create_default_context(cafile=str(tls.ca))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_keys_by_https(provider: tuple[str, ssl.SSLContext]) -> None:
    url, context = provider
    assert read_jwks(JwksUrl(f"{url}/keys", context=context)() or b"").keys() == {"r"}
    assert read_jwks(JwksUrl(f"{url}/keys?v=1", context=context)() or b"").keys() == {"e"}
    for path in ("/moved", "/broken", "/huge"):
        with pytest.raises(ValueError):
            JwksUrl(url + path, context=context)()
    with pytest.raises(ssl.SSLCertVerificationError):
        JwksUrl(f"{url}/keys")()
    for bad in ("http://id.example/keys", "ftp://x", "https://"):
        with pytest.raises(ValueError, match="https"):
            JwksUrl(bad)


def test_the_first_token_makes_the_keys_come(provider: tuple[str, ssl.SSLContext]) -> None:
    url, context = provider
    keys = JwksKeys(JwksUrl(f"{url}/keys", context=context), again_seconds=30, stale_seconds=300)
    assert verify(signed(), keys).org == "acme"


def test_the_settings_say_whose_tokens_are_believed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(document(rsa_jwk()))
    (tmp_path / "settings.toml").write_text(
        f'user_jwks = "{path}"\nuser_issuer = "https://id.example"\nuser_audience = "trace"\n'
        'user_org_claim = "tenant"\nuser_roles_claim = "groups"\n'
    )
    settings = Settings.load({"home": tmp_path}, environ={})
    keys = open_user_keys(settings)
    assert keys is not None
    assert verify(signed(), keys, dispatcher_config(settings).user_tokens).roles == ["reader", "staff"]
    child = Settings.load(environ=settings.to_environment() | {"TRACE_SUPERVISED": "1"})
    assert child == settings
    assert open_user_keys(Settings.load({"home": tmp_path / "own"}, environ={})) is None


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('user_jwks = "keys.json"', "user_jwks needs user_issuer"),
        ('user_jwks = "http://id.example/keys"\nuser_issuer = "x"', "expected the path of a file, or an https://"),
        ('user_issuer = "a b"', "visible ASCII"),
        ('user_org_claim = "sub"', "must be different claims"),
        ('user_org_claim = "x"\nuser_roles_claim = "x"', "must be different claims"),
        ('org = "my-org"', "lower-case"),
        ("user_rate_burst = 0", "a whole number from 1"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "settings.toml").write_text(toml)
    with pytest.raises(SettingsError, match=message):
        Settings.load({"home": tmp_path}, environ={})
