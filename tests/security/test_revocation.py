"""Tokens that admins make, list and revoke: a revoked token opens nothing, at once, and no other org's is touched."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.api.support import User
from tests.http.support import Refusals, fresh, user_token
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.stack.credentials import user_token as make_token
from tracelake.tokens.revocations import FRESH_SECONDS, STALE_SECONDS, RevocationCheck, RevokedTokens
from tracelake.tokens.users import UserClaims
from tracelake.wire.tokens import RevocationEntry


@pytest.fixture
def admin(harness: DispatcherHarness) -> User:
    return User(harness, fresh("team"), "admin", "ada")


def create(admin: User, **fields: Any) -> dict[str, Any]:
    reply = admin.call("POST", "/v1/tokens", {"subject": "bob", "role": "reader"} | fields)
    assert reply.status == 200, reply
    assert isinstance(reply.body, dict)
    return reply.body


def call(harness: DispatcherHarness, token: str, method: str = "GET", path: str = "/v1/whoami") -> Reply:
    return harness.call("public", method, path, None, {"authorization": f"Bearer {token}"})


def revoke(admin: User, token_id: str) -> Reply:
    return admin.call("DELETE", f"/v1/tokens/{token_id}")


def audited(admin: User) -> list[tuple[str, str]]:
    return [(entry["action"], entry["subject"]) for entry in admin.get("/v1/audit")["entries"]]


def test_a_token_says_what_was_asked_for_and_is_listed(harness: DispatcherHarness, admin: User) -> None:
    made = create(admin, role="writer", days=7, dags=["pools", "defi", "pools"])
    me = call(harness, made["token"]).body
    assert (me["subject"], me["org"], me["roles"], me["dags"]) == ("bob", admin.org, ["writer"], ["defi", "pools"])
    (row,) = admin.get("/v1/tokens")["tokens"]
    assert row == made["row"]
    life = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(row["created_at"])
    assert (row["created_by"], row["dags"], life) == ("ada", ["defi", "pools"], timedelta(days=7))
    assert made["token"] not in msgspec.json.encode(harness.sql("SELECT t::text FROM user_tokens t")[0]["t"]).decode()
    assert audited(admin) == [("token.create", "ada")]


@pytest.mark.parametrize("role", ["reader", "writer", "admin"])
def test_every_role_gets_a_token_without_a_limit(harness: DispatcherHarness, admin: User, role: str) -> None:
    assert call(harness, create(admin, role=role)["token"]).body["roles"] == [role]


def test_a_repeated_call_makes_no_second_token(harness: DispatcherHarness, admin: User) -> None:
    token_id = str(uuid4())
    first, again = create(admin, token_id=token_id), create(admin, token_id=token_id)
    assert (first.get("duplicate"), again["duplicate"], again["row"]) == (None, True, first["row"])
    assert call(harness, again["token"]).status == 200
    with Refusals(harness) as refusals:
        for other in ({"days": 2}, {"role": "writer"}, {"subject": "eve"}, {"dags": ["a"]}):
            body = {"subject": "bob", "role": "reader", "token_id": token_id} | other
            refusals.check(admin.call("POST", "/v1/tokens", body), 422, "token_conflict")
    assert revoke(admin, token_id).status == 200
    body = {"subject": "bob", "role": "reader", "token_id": token_id}
    assert admin.call("POST", "/v1/tokens", body).code == "token_conflict", "it gives no revoked token back"


@pytest.mark.parametrize(
    "wrong",
    [{"role": "owner"}, {"days": 31}, {"days": 0}, {"dags": []}, {"dags": ["A"]}, {"role": "admin", "dags": ["a"]}],
)
def test_a_token_that_cannot_be_meant_is_refused(admin: User, wrong: dict[str, Any]) -> None:
    reply = admin.call("POST", "/v1/tokens", {"subject": "bob", "role": "reader"} | wrong)
    assert (reply.status, reply.body["error"]["code"]) == (422, "body_invalid")
    assert admin.get("/v1/tokens") == {"tokens": []}


def test_a_revoked_token_ends_at_once_and_alone(harness: DispatcherHarness, admin: User) -> None:
    one, other = create(admin), create(admin)
    assert call(harness, one["token"]).status == 200
    first = revoke(admin, one["row"]["token_id"])
    refused = call(harness, one["token"])
    assert (refused.status, refused.body["error"]["code"]) == (401, "credential_revoked")
    assert call(harness, other["token"]).status == 200
    assert (first.status, revoke(admin, one["row"]["token_id"]).body) == (200, first.body | {"duplicate": True})
    rows = {row["token_id"]: row.get("revoked_by") for row in admin.get("/v1/tokens")["tokens"]}
    assert rows == {one["row"]["token_id"]: "ada", other["row"]["token_id"]: None}
    assert audited(admin) == [("token.revoke", "ada"), ("token.create", "ada"), ("token.create", "ada")]


def test_a_revocation_is_known_to_a_process_that_starts_later(harness: DispatcherHarness, admin: User) -> None:
    made = create(admin)
    revoke(admin, made["row"]["token_id"])
    listed = harness.service("GET", "/internal/token-revocations").body["revocations"]
    entry = next(item for item in listed if item["org"] == admin.org)
    assert (entry["token_id"], "subject" in entry) == (made["row"]["token_id"], False)
    harness.dispatcher.revocations.forget()  # as one that has read nothing yet
    assert call(harness, made["token"]).status == 401


def test_another_org_revokes_only_its_own(harness: DispatcherHarness, admin: User) -> None:
    made = create(admin)
    stranger = User(harness, fresh("other"), "admin")
    with Refusals(harness) as refusals:
        refusals.check(revoke(stranger, made["row"]["token_id"]), 404, "token_not_found")
    for body in ({"subject": "bob"}, {"token_id": made["row"]["token_id"]}):
        assert stranger.call("POST", "/v1/token-revocations", body).status == 200
    assert call(harness, made["token"]).status == 200
    assert stranger.get("/v1/tokens") == {"tokens": []}


def test_tokens_without_a_record_are_revoked_by_id_or_by_subject(harness: DispatcherHarness, admin: User) -> None:
    now = harness.sql("SELECT trace_now() AS now")[0]["now"] - timedelta(seconds=2)
    keys, rules = harness.credentials.user_keys, harness.config.user_tokens

    def foreign(subject: str, token_id: str | None) -> str:
        return make_token(keys, rules, subject=subject, org=admin.org, roles=["reader"], now=now, token_id=token_id)

    named, unnamed, others = foreign("eve", "id of theirs"), foreign("eve", None), foreign("mallory", "another id")
    assert admin.call("POST", "/v1/token-revocations", {"token_id": "id of theirs"}).status == 200
    assert [call(harness, token).status for token in (named, unnamed, others)] == [401, 200, 200]
    recorded = create(admin, subject="eve")
    assert admin.call("POST", "/v1/token-revocations", {"subject": "eve"}).status == 200
    tokens = (named, unnamed, others, recorded["token"])
    assert [call(harness, token).status for token in tokens] == [401, 401, 200, 401]
    assert create(admin, subject="eve")["row"].get("revoked_at") is None
    assert call(harness, create(admin, subject="eve")["token"]).status == 200, "those that come later are good"
    assert {row["token_id"]: "revoked_at" in row for row in admin.get("/v1/tokens")["tokens"]}[
        recorded["row"]["token_id"]
    ]


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_only_admins_make_and_see_tokens(harness: DispatcherHarness, admin: User, role: str) -> None:
    user = User(harness, admin.org, role)
    with Refusals(harness) as refusals:
        refusals.check(user.call("POST", "/v1/tokens", {"subject": "x", "role": "admin"}), 403, "role_forbidden")
        refusals.check(user.call("GET", "/v1/tokens"), 403, "role_forbidden")
        refusals.check(revoke(user, str(uuid4())), 403, "role_forbidden")


def test_tokens_are_listed_page_by_page(admin: User) -> None:
    made = [create(admin)["row"]["token_id"] for _ in range(5)]
    assert [row["token_id"] for row in admin.pages("/v1/tokens?limit=2", "tokens")] == made[::-1]


def test_a_token_made_before_revocation_of_its_like_stays_valid(harness: DispatcherHarness, admin: User) -> None:
    """Tokens of earlier releases have no id."""
    assert call(harness, user_token(harness, org=admin.org, subject="old")).status == 200


# --- the copy of a listener


def claims(**fields: Any) -> UserClaims:
    return msgspec.convert({"sub": "bob", "org": "acme", "roles": ["reader"], "exp": 0.0} | fields, UserClaims)


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_newest_revocation_of_a_subject_counts() -> None:
    entries = [
        RevocationEntry(org="acme", subject="bob", issued_until=MOMENT),
        RevocationEntry(org="acme", subject="bob", issued_until=MOMENT - timedelta(days=1)),
    ]
    revoked = RevokedTokens(entries)
    assert revoked.contain(claims(issued_at=MOMENT.timestamp()))
    assert revoked.contain(claims()), "who does not say when it was issued"
    assert not revoked.contain(claims(issued_at=MOMENT.timestamp() + 0.001))
    assert not revoked.contain(claims(org="other"))


class Source:
    """A list of revocations that can be away."""

    def __init__(self) -> None:
        self.entries: list[RevocationEntry] = []
        self.looks = 0
        self.away = False

    async def load(self) -> list[RevocationEntry]:
        self.looks += 1
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailableError
        return self.entries


class Clock:
    now = 100.0

    def read(self) -> float:
        return self.now


def test_a_listener_reads_the_list_once_a_second_and_fails_closed() -> None:
    source, clock = Source(), Clock()

    async def scenario() -> None:
        check = RevocationCheck(source.load, monotonic=clock.read)
        await asyncio.gather(*(check.check(claims(token_id="a")) for _ in range(20)))
        assert source.looks == 1, "callers share a look"
        source.entries = [RevocationEntry(org="acme", token_id="a", issued_until=MOMENT)]
        clock.now += FRESH_SECONDS + 0.1
        with pytest.raises(TraceError, match="revoked"):
            await check.check(claims(token_id="a"))
        source.away = True
        clock.now += STALE_SECONDS - 0.2
        await check.check(claims(token_id="b"))
        with pytest.raises(TraceError, match="revoked"):
            await check.check(claims(token_id="a"))
        clock.now += 0.3
        with pytest.raises(StoreUnavailableError):
            await check.check(claims(token_id="b"))
        source.away = False
        await check.check(claims(token_id="b"))

    asyncio.run(scenario())


def test_a_listener_that_never_read_the_list_accepts_nobody() -> None:
    source = Source()
    source.away = True

    async def scenario() -> None:
        with pytest.raises(StoreUnavailableError):
            await RevocationCheck(source.load).check(claims())

    asyncio.run(scenario())
