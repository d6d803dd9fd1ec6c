"""The long forms of the security tests, for `make soak`: bombs again and again, long floods, many forged tokens."""

import asyncio
import hashlib
import hmac
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.issuer import GOOD, RSA, b64, rsa_jwk, signed, verify
from tests.security.bombs import BOMBS
from tests.security.test_floods import PROBES, STATUS, FloodedDispatcher, flood
from tests.security.test_floods import dispatcher as dispatcher
from tests.security.test_process_isolation import COUNT, Org
from tests.security.test_process_isolation import pool as pool
from tests.security.test_process_isolation import root as root
from tests.support.postgres import wait_until
from tracelake.errors import TraceError
from tracelake.worker.org_process.pool import OrgProcesses

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

BOMB_ROUNDS = 2
BOMB_SECONDS = 10.0
"""After so long an attempt is canceled; one that does not stop then ends its process."""
FLOOD_ROUNDS = 30
TOKENS = 30_000


# --- bombs


class BusyNeighbour(threading.Thread):
    """Another org whose tasks run one after the other, until it is told to stop."""

    def __init__(self, org: Org) -> None:
        super().__init__(daemon=True)
        self.org = org
        self.tasks = 0
        self.error: BaseException | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                result = self.org.run(COUNT)
                assert result.outputs[0].row_count == 2
                self.tasks += 1
        except BaseException as error:
            self.error = error

    def wait_for_task(self, before: int) -> None:
        """Until it has done more tasks than before, or failed."""
        wait_until(lambda: self.tasks > before or self.error is not None, "a task of the neighbour", 60)

    def stop(self) -> None:
        self._stopping.set()
        self.join(120)
        assert not self.is_alive()


def test_bombs_again_and_again_beside_a_neighbour(pool: OrgProcesses, root: Path) -> None:
    """Also those that the gate refuses, as if it did not: whatever becomes of the process of their org, the neighbour's
    stays the same, and its tasks are all right."""
    bomber, neighbour = Org("bomber", pool, root), BusyNeighbour(Org("neighbour", pool, root))
    bomber.add()
    neighbour.org.add()
    neighbour.org.run()
    process = neighbour.org.process
    neighbour.start()
    for _ in range(BOMB_ROUNDS):
        for bomb in BOMBS:
            before, context = neighbour.tasks, bomber.context(traceparent=bomb["query"])
            attempt = bomber.begin(context, "tests.security.ungated")
            attempt.join(BOMB_SECONDS)
            context.cancel.set()
            attempt.end()
            assert attempt.result is not None or isinstance(attempt.error, Exception), bomb["name"]
            neighbour.wait_for_task(before)
            assert neighbour.error is None, (bomb["name"], neighbour.error)
    neighbour.stop()
    assert neighbour.error is None
    assert process.alive
    assert neighbour.org.process is process


# --- floods


def test_a_long_flood_of_every_listener(dispatcher: FloodedDispatcher) -> None:
    """New floods before the old ones end, at all listeners in turn; when they are over, nothing of them is left."""

    async def ask(name: str) -> None:
        client = dispatcher.client(name)
        try:
            assert (await client.request("GET", PROBES[name])).status == STATUS[name]
        finally:
            await client.close()

    async def work() -> None:
        before = dispatcher.descriptors
        for number in range(FLOOD_ROUNDS):
            name = list(PROBES)[number % len(PROBES)]
            closers = await flood(dispatcher, name)
            for other in PROBES:
                await ask(other)
            assert dispatcher.descriptors < 512 - 64, "the reserve was not touched"
            for close in closers:
                close()
        async with asyncio.timeout(60):
            while dispatcher.descriptors > before + 8:
                await asyncio.sleep(0.1)

    asyncio.run(work())


# --- tokens

_NAMES = st.sampled_from([*GOOD, "nbf", "jti", "kid", "alg", "roles", "org"])
_CLAIMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.text(max_size=5))
_HEADERS = st.fixed_dictionaries(
    {
        "alg": st.sampled_from(["RS256", "ES256", "HS256", "none", "None", "PS256", "RS512", "", "rs256"]),
        "kid": st.sampled_from(["r", "e", "", "../r", "r\0", "R"]) | st.text(max_size=8),
    },
    optional={
        "typ": st.sampled_from(["JWT", "jwt", "at+jwt", "JWE", ""]),
        "jwk": st.just(rsa_jwk()),
        "jku": st.just("https://evil.example/jwks"),
        "x5u": st.just("https://evil.example/x5u"),
        "crit": st.lists(st.text(max_size=4), max_size=2),
        "zip": st.just("DEF"),
        "b64": st.booleans(),
    },
)


def is_refused(token: str) -> bool:
    """By a code, whatever it is made of; anything else that is raised fails the test."""
    try:
        verify(token)
    except TraceError as refusal:
        return refusal.status == 401
    return False


@settings(max_examples=TOKENS, derandomize=False)
@given(header=_HEADERS, claims=st.dictionaries(_NAMES, _CLAIMS, max_size=4), signature=st.binary(max_size=300))
def test_no_token_without_the_key(header: dict[str, Any], claims: dict[str, Any], signature: bytes) -> None:
    message = f"{b64(header)}.{b64(GOOD | claims)}"
    mac = hmac.new(rsa_jwk()["n"].encode(), message.encode(), hashlib.sha256).digest()
    stolen = signed().rpartition(".")[2]
    for end in (b64(signature), b64(mac), stolen, ""):
        assert is_refused(f"{message}.{end}")


@settings(max_examples=TOKENS, derandomize=False)
@given(data=st.data())
def test_no_token_that_was_changed(data: st.DataObject) -> None:
    token = signed()
    changed = list(token)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.text(max_size=2))
        if not changed:
            break
    assert "".join(changed) == token or is_refused("".join(changed))


@settings(max_examples=TOKENS, derandomize=False)
@given(claims=st.dictionaries(_NAMES, _CLAIMS, max_size=3))
def test_signed_claims_are_believed_only_when_they_are_right(claims: dict[str, Any]) -> None:
    """Whatever the issuer itself signs: what is believed has the types, the audience and the time of a good one."""
    token = signed_as_is(GOOD | claims)
    if is_refused(token):
        return
    believed = GOOD | claims
    assert believed["iss"] == GOOD["iss"]
    assert "trace" in ([believed["aud"]] if isinstance(believed["aud"], str) else believed["aud"])
    assert believed["exp"] > GOOD["iat"]
    assert believed.get("nbf", 0) <= GOOD["iat"]
    assert isinstance(believed["tenant"], str)
    assert all(isinstance(group, str) for group in believed["groups"])


def signed_as_is(claims: dict[str, Any]) -> str:
    """By the issuer's key, without the checks of the library that usually signs."""
    message = f"{b64({'alg': 'RS256', 'kid': 'r', 'typ': 'JWT'})}.{b64(claims)}"
    return f"{message}.{b64(RSA.sign(message.encode(), padding.PKCS1v15(), SHA256()))}"
