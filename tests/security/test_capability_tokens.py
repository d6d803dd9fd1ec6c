"""Capability tokens: what we mint, read by another library; and every forgery we could think of, refused."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.support import NOWHERE, Claimed, Refusals, claimed, fresh, make_job, raw_reply
from tests.support.configs import USER_TOKEN_RULES
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.mint import ALWAYS_ON_LIFE_SECONDS, MAX_LIFE_SECONDS
from tracelake.errors import TraceError
from tracelake.stack.credentials import admin_token
from tracelake.tokens import jws
from tracelake.tokens.verify import KeyDirectory


@pytest.fixture(scope="module")
def task(harness: DispatcherHarness) -> Claimed:
    return claimed(harness)


def beat(task: Claimed, token: str) -> Reply:
    return task.harness.task("heartbeat", token, task.body())


def b64(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    header, payload, signature = token.split(".")
    return jwt.get_unverified_header(token), jws_json(payload), signature if header else ""


def jws_json(part: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


def resigned(task: Claimed, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """The task's own token with changes, signed by the real key: only the check under test can refuse it."""
    old_header, old_claims, _ = parts(task.token)
    changed = {key: value for key, value in (old_claims | claims).items() if value is not ...}
    signing_input = f"{b64(old_header | (header or {}))}.{b64(changed)}"
    keys = task.harness.credentials.task_keys
    return f"{signing_input}.{b64(keys.sign(old_header['kid'], signing_input.encode()))}"


def public_key(harness: DispatcherHarness) -> tuple[str, ec.EllipticCurvePublicKey]:
    (document,) = harness.call("task", "GET", "/internal/jwks/task").body["keys"]
    key = jwt.PyJWK(document).key
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return document["kid"], key


def test_another_library_reads_our_tokens(harness: DispatcherHarness) -> None:
    org = fresh()
    source = make_job(harness, org=org)
    read = {key: source["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}
    job = make_job(harness, org=org, limits={"timeout_seconds": 600})
    unit = {"partition_key": "a"}
    # Twice the same generation is one grant.
    inputs = [read | {"input_index": index, "unit": unit, "name": "ignored"} for index in (0, 1)]
    task = claimed(harness, job, inputs=inputs)
    kid, key = public_key(harness)
    assert jwt.get_unverified_header(task.token) == {"alg": "ES256", "kid": kid, "typ": "JWT"}
    claims = jwt.decode(
        task.token,
        key,
        algorithms=["ES256"],
        audience="trace.task",
        issuer="trace",
        options={"verify_iat": False, "verify_exp": False},
    )
    assert claims["exp"] - claims["iat"] in (899, 900)  # timeout_seconds + 5 min, to the second
    assert len(claims["jti"]) == 36
    write, buffer = task.where("s3")["write_prefix"], task.where("buffered")["buffer_prefix"]
    expected = {
        "iss": "trace",
        "aud": "trace.task",
        "sub": f"task:{task.task_id}",
        "iat": claims["iat"],
        "exp": claims["exp"],
        "jti": claims["jti"],
        "org_id": job["org_id"],
        "task_id": task.task_id,
        "attempt": 1,
        "datasets": [read | {"name": "s3_set", "storage": ["s3"]}],
        "publishes": [
            {key: output[key] for key in ("dataset_uuid", "dataset_version", "name")} for output in job["outputs"]
        ],
        "s3": {
            "read_prefixes": [f"s3://trace-datasets/datasets/{read['dataset_uuid']}/{read['dataset_version']}/"],
            "write_prefixes": [write],
            "buffer_prefix": buffer,
            "scratch_prefix": buffer.replace("/buffers/", "/scratch/"),
        },
    }
    assert claims == expected
    output = job["outputs"][0]
    where = f"{output['dataset_uuid']}/{output['dataset_version']}/{task.task_id}/1/"
    assert write == f"s3://trace-datasets/datasets/{where}"


def test_an_untouched_copy_is_accepted(task: Claimed) -> None:
    """Or the forgeries below would prove nothing."""
    assert beat(task, resigned(task)).status == 200


_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256."""


def forgeries(task: Claimed) -> dict[str, tuple[str, str]]:
    """By name: a token, and the code it is refused with."""
    harness = task.harness
    header, claims, signature = parts(task.token)
    first, second, _ = task.token.split(".")
    kid, key = public_key(harness)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    point = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    intruder = ec.generate_private_key(ec.SECP256R1())
    own_jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(intruder.public_key()))
    p384 = ec.generate_private_key(ec.SECP384R1())

    def symmetric(secret: bytes, algorithm: str = "HS256") -> str:
        text = f"{b64(header | {'alg': algorithm})}.{second}"
        return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"

    def twice(name: str, first: str, last: str) -> bytes:
        named = {"alg": "ES256", "kid": kid, "typ": "JWT"} | {name: last}
        return f'{{"{name}": {json.dumps(first)}, {json.dumps(named)[1:]}'.encode()

    def own(extra: dict[str, Any]) -> str:
        return jwt.encode(claims, intruder, algorithm="ES256", headers={"kid": kid} | extra)

    def none(name: str) -> str:
        return f"{b64(header | {'alg': name})}.{second}."

    invalid, malformed, unknown = "credential_invalid", "credential_malformed", "credential_unknown_key"
    return {
        **{f"alg {name}": (none(name), invalid) for name in ("none", "None", "NONE", "")},
        "alg none with the old signature": (f"{b64(header | {'alg': 'none'})}.{second}.{signature}", invalid),
        **{
            f"our signature, alg {name}": (resigned(task, {"alg": name}), invalid)
            for name in ("none", "HS256", "ES384")
        },
        "HS256 by the PEM": (symmetric(pem), invalid),
        "HS256 by the PEM, stripped": (symmetric(pem.strip()), invalid),
        "HS256 by the DER": (symmetric(der), invalid),
        "HS256 by the point": (symmetric(point), invalid),
        "HMAC that calls itself ES256": (symmetric(pem, "ES256"), invalid),
        "another key, the same kid": (own({}), invalid),
        "its own jwk": (own({"jwk": own_jwk}), malformed),
        "its own jwk, our signature": (resigned(task, {"jwk": own_jwk}), malformed),
        "x5u": (resigned(task, {"x5u": "https://example.com/key"}), malformed),
        "jku": (resigned(task, {"jku": "https://example.com/keys"}), malformed),
        "x5c": (resigned(task, {"x5c": []}), malformed),
        "crit": (resigned(task, {"crit": ["exp"]}), malformed),
        "typ": (resigned(task, {"typ": "JWE"}), invalid),
        "unknown kid": (own({"kid": "0" * 16}), unknown),
        **{
            f"kid {name!r}": (own({"kid": name}), unknown)
            for name in (
                "",
                "../../etc/passwd",
                f"./{kid}",
                f"{kid}.pem",
                f"{kid}\0",
                kid.upper() + " ",
                "%00",
                "x" * 9999,
            )
        },
        "our signature, a path to the kid": (resigned(task, {"kid": f"../task/{kid}"}), unknown),
        "alg twice": (f"{b64(twice('alg', 'none', 'ES256'))}.{second}.{b64(bytes(64))}", invalid),
        "alg twice, none last": (f"{b64(twice('alg', 'ES256', 'none'))}.{second}.", invalid),
        "kid twice": (f"{b64(twice('kid', kid, '0' * 16))}.{second}.{signature}", unknown),
        "kid of the user keys": (own({"kid": harness.credentials.user_keys.current_kid(_now(harness))}), unknown),
        "no kid": (jwt.encode(claims, intruder, algorithm="ES256"), malformed),
        "kid of another type": (f"{b64(header | {'kid': 1})}.{second}.{signature}", malformed),
        "ES384": (jwt.encode(claims, p384, algorithm="ES384", headers={"kid": kid}), invalid),
        "ES256K": (_of_koblitz(f"{b64(header | {'alg': 'ES256K'})}.{second}"), invalid),
        "ES256 on another curve": (_of_koblitz(f"{first}.{second}"), invalid),
        "a signature of the order": (f"{first}.{second}.{b64(_ORDER.to_bytes(32, 'big') * 2)}", invalid),
        "DER signature": (f"{first}.{second}.{b64(_der(task))}", invalid),
        "no signature": (f"{first}.{second}.", invalid),
        "zero signature": (f"{first}.{second}.{b64(bytes(64))}", invalid),
        "half a signature": (f"{first}.{second}.{b64(jws.unb64(signature)[:32])}", invalid),
        "signature twice": (f"{first}.{second}.{b64(jws.unb64(signature) * 2)}", invalid),
        "two parts": (f"{first}.{second}", malformed),
        "four parts": (f"{task.token}.{signature}", malformed),
        "padding": (f"{first}.{second}.{signature}==", malformed),
        "plain base64": (f"{first}.{second}.{signature[:-2]}+/", malformed),
        "space": (f"{first}.{second[:8]} {second[8:]}.{signature}", malformed),
        "spare bits": (f"{first}.{second}.{_spare_bits(signature)}", malformed),
        "header is no JSON": (f"{b64(b'{')}.{second}.{signature}", malformed),
        "header is no text": (f"{b64(bytes([255, 254]))}.{second}.{signature}", malformed),
        "payload is no claims": (_signed(task, b"[]"), malformed),
        "payload is no JSON": (_signed(task, b"{"), malformed),
        "payload is no text": (_signed(task, b'{"iss": "\xff"}'), malformed),
        "payload nests for ever": (_signed(task, b'{"x":' + b"[" * 5000), malformed),
        "a claim is missing": (resigned(task, exp=...), malformed),
        **{
            f"exp {value!r}": (resigned(task, exp=value), malformed)
            for value in ("never", str(claims["exp"]), claims["exp"] + 0.5, 1e300, float("inf"), None, True, 10**30, -1)
        },
        "exp twice, the last is over": (_signed(task, _claims_twice(claims, claims["iat"] - 1)), "credential_expired"),
        "before its time": (resigned(task, nbf=claims["exp"] - 1), invalid),
        "another aud": (resigned(task, aud="trace.user"), invalid),
        "a list of auds": (resigned(task, aud=["trace.task"]), malformed),
        "another iss": (resigned(task, iss="somebody"), invalid),
        "another sub": (resigned(task, sub=f"task:{NOWHERE}"), invalid),
        "sub of a user": (resigned(task, sub="admin"), invalid),
        "expired": (resigned(task, exp=claims["iat"] - 1), "credential_expired"),
        "huge": (f"{first}.{second}{'A' * 70_000}.{signature}", malformed),
        "not a token": ("token", malformed),
        "dots": ("..", malformed),
    }


def _now(harness: DispatcherHarness) -> Any:
    return harness.sql("SELECT trace_now() AS now")[0]["now"]


def _der(task: Claimed) -> bytes:
    raw = jws.unb64(task.token.split(".")[2])
    return encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))


def _of_koblitz(text: str) -> str:
    """A signature of the right size, on another curve of the same size."""
    key = ec.generate_private_key(ec.SECP256K1())
    r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(SHA256())))
    return f"{text}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _spare_bits(signature: str) -> str:
    """The same 64 bytes, spelled with the unused bits of the last character set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return signature[:-1] + alphabet[alphabet.index(signature[-1]) | 1]


def _claims_twice(claims: dict[str, Any], last: int) -> bytes:
    return f'{json.dumps(claims)[:-1]}, "exp": {last}}}'.encode()


def _signed(task: Claimed, payload: bytes) -> str:
    kid = parts(task.token)[0]["kid"]
    return jws.encode(payload, kid, lambda message: task.harness.credentials.task_keys.sign(kid, message))


def test_forgeries(task: Claimed) -> None:
    made = forgeries(task)
    with Refusals(task.harness) as refusals:
        for name, (token, code) in made.items():
            reply = beat(task, token)
            assert (name, reply.status) == (name, 401)
            assert (name, reply.code) == (name, code)
            error = refusals.check(reply, 401, code)
            assert error["details"] == {}
            # A batch item is checked by the same verifier.
            item = {"call": "heartbeat", "capability_token": token, "body": task.body()}
            answer = task.harness.call("task", "POST", "/v1/task/batch", {"calls": [item]}).body["answers"][0]
            assert (answer["status"], answer["body"]["error"]["code"]) == (401, code)
    assert beat(task, task.token).status == 200


def test_a_token_has_one_spelling(task: Claimed) -> None:
    """In a batch, where no parser of headers stands before the verifier."""
    token = task.token
    first, second, third = token.split(".")
    spellings = [f" {token}", f"{token} ", f"{token}\n", f"\t{token}", f"Bearer {token}", f"{token}\u200b"]
    spellings += [
        token.replace(".", "\uff0e"),
        f"{first}\r\n.{second}.{third}",
        f"{first}.{second[:9]}\n{second[9:]}.{third}",
    ]

    def beat_all(tokens: list[str]) -> list[Reply]:
        calls = [{"call": "heartbeat", "capability_token": item, "body": task.body()} for item in tokens]
        answers = task.harness.call("task", "POST", "/v1/task/batch", {"calls": calls}).body["answers"]
        return [Reply(answer["status"], answer["body"]) for answer in answers]

    with Refusals(task.harness) as refusals:
        for reply in beat_all(spellings):
            refusals.check(reply, 401, "credential_malformed")
    assert [reply.status for reply in beat_all([token])] == [200]


def test_a_flood_of_unknown_keys_reads_the_ring_once_a_second(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1000.0
    monkeypatch.setattr("tracelake.tokens.verify.time.monotonic", lambda: seconds)
    looks: list[float] = []
    ring = harness.credentials.task_keys
    monkeypatch.setattr(ring, "refresh", lambda: looks.append(seconds))
    keys, now = KeyDirectory(ring), _now(harness)
    for number in range(3000):
        if number % 1000 == 999:
            seconds += 1.0
        assert keys.find(f"unknown-{number}", now) is None
    assert len(looks) <= 2 * 4, "each second one that is due, and one in vain"
    assert keys.find(ring.current_kid(now), now) is not None


def test_user_tokens(harness: DispatcherHarness, task: Claimed) -> None:
    """The public listener's own: the same rules, another key ring, another audience."""
    keys, now = harness.credentials.user_keys, _now(harness)
    kid = keys.current_kid(now)
    good = parts(admin_token(keys, "acme", now, USER_TOKEN_RULES))[1]

    def whoami(header: dict[str, Any] | None = None, **claims: Any) -> Reply:
        changed = {key: value for key, value in (good | claims).items() if value is not ...}
        text = f"{b64({'alg': 'ES256', 'kid': kid, 'typ': 'JWT'} | (header or {}))}.{b64(changed)}"
        token = f"{text}.{b64(keys.sign(kid, text.encode()))}"
        return harness.call("public", "GET", "/v1/whoami", None, {"authorization": f"Bearer {token}"})

    expires_at = datetime.fromtimestamp(good["exp"], UTC).isoformat().replace("+00:00", "Z")
    me = {"subject": "admin", "org": "acme", "roles": ["admin", "writer", "reader"]}
    assert whoami().body == me | {"expires_at": expires_at}
    task_kid = parts(task.token)[0]["kid"]
    with Refusals(harness) as refusals:
        refusals.check(whoami(exp=int(now.timestamp()) - 1), 401, "credential_expired")
        refusals.check(whoami(aud="trace.task"), 401, "credential_invalid")
        refusals.check(whoami(iss="somebody"), 401, "credential_invalid")
        refusals.check(whoami(org=...), 401, "credential_malformed")
        refusals.check(whoami(roles="admin"), 401, "credential_malformed")
        refusals.check(whoami({"alg": "none"}), 401, "credential_invalid")
        refusals.check(whoami({"jwk": {}}), 401, "credential_malformed")
        refusals.check(whoami({"kid": task_kid}), 401, "credential_unknown_key")


def test_no_byte_of_a_token_can_change(task: Claimed) -> None:
    """The signature covers everything, and there is one spelling for each value."""
    app, token = task.harness.dispatcher, task.token
    verifier = app.service.mint.verifier

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(at=st.integers(0, len(token) - 1), other=st.characters(codec="latin-1"), keep=st.integers(0, len(token)))
    def check(at: int, other: str, keep: int) -> None:
        for changed in (token[:at] + other + token[at + 1 :], token[:keep], token + other, other + token):
            if changed == token:
                continue
            with pytest.raises(TraceError) as refused:
                verifier.verify(changed, app.clock.now())
            assert refused.value.status == 401

    check()


def test_the_header_sent_twice(task: Claimed) -> None:
    body = json.dumps(task.body()).encode()
    line = f"x-trace-task-capability: {task.token}"
    head = f"POST /v1/task/heartbeat HTTP/1.1\nhost: x\ncontent-length: {len(body)}\n"
    assert raw_reply(task.harness, "task", head + line, body).status == 200
    reply = raw_reply(task.harness, "task", f"{head}{line}\n{line}", body)
    assert (reply.status, reply.code) == (401, "credential_missing")


def test_a_token_holds_from_one_moment_to_another(task: Claimed) -> None:
    verifier = task.harness.dispatcher.service.mint.verifier
    end = datetime.fromtimestamp(parts(task.token)[1]["exp"], UTC)
    begin = end - timedelta(seconds=60)
    later = resigned(task, nbf=int(begin.timestamp()))
    moment = timedelta(microseconds=1)
    for token, now, code in (
        (task.token, end - moment, None),
        (task.token, end, "credential_expired"),
        (later, begin, None),
        (later, begin - moment, "credential_invalid"),
    ):
        try:
            verifier.verify(token, now)
        except TraceError as refusal:
            assert refusal.code == code  # noqa: PT017 - some of them hold
        else:
            assert code is None


def test_an_expired_token(harness: DispatcherHarness) -> None:
    task = claimed(harness, make_job(harness, limits={"timeout_seconds": 60, "heartbeat_timeout_seconds": 60}))
    harness.advance(355)
    assert beat(task, task.token).code == "deadline_exceeded"
    harness.advance(10)
    with Refusals(harness) as refusals:
        refusals.check(beat(task, task.token), 401, "credential_expired")
        # No fresh one either: no token outlives the deadline by more than five minutes.
        reply = harness.worker("POST", "/internal/task-token", task.body())
        error = refusals.check(reply, 409, "deadline_exceeded")
        assert error["details"] == {"attempt": 1, "status": "Running"}


def test_heartbeat_refreshes_in_the_last_third(harness: DispatcherHarness) -> None:
    """A job whose deadline does not bound the token: after two thirds of a day a fresh one comes along."""
    week = 7 * 24 * 3600
    task = claimed(harness, make_job(harness, limits={"timeout_seconds": week, "heartbeat_timeout_seconds": week}))
    _, old, _ = parts(task.token)
    assert old["exp"] - old["iat"] == MAX_LIFE_SECONDS
    assert "capability_token" not in beat(task, task.token).body
    harness.advance(MAX_LIFE_SECONDS * 2 / 3 - 60)
    assert "capability_token" not in beat(task, task.token).body
    harness.advance(120)
    fresh = beat(task, task.token).body["capability_token"]
    _, new, _ = parts(fresh)
    changed = {"iat", "exp", "jti"}
    assert {key: value for key, value in new.items() if key not in changed} == {
        key: value for key, value in old.items() if key not in changed
    }
    assert all(new[key] != old[key] for key in changed)
    assert new["exp"] - new["iat"] == MAX_LIFE_SECONDS
    assert beat(task, fresh).status == 200
    assert beat(task, task.token).status == 200, "the old one lives to its end"


def test_no_token_outlives_the_deadline_by_more_than_five_minutes(harness: DispatcherHarness) -> None:
    task = claimed(harness, make_job(harness, limits={"timeout_seconds": 1000, "heartbeat_timeout_seconds": 1000}))
    end = (harness.row(task.task_id)["deadline_at"] + timedelta(minutes=5)).timestamp()
    tokens = [task.token]
    for seconds in (0, 400, 500, 90, 200, 100):
        harness.advance(seconds)
        reply = harness.worker("POST", "/internal/task-token", task.body())
        assert reply.status == 200
        tokens.append(reply.body["capability_token"])
        tokens += [beat(task, tokens[-1]).body.get("capability_token", tokens[-1])]
    assert all(end - 2 <= parts(token)[1]["exp"] <= end for token in tokens)


def test_task_token_is_fenced(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    fresh = harness.worker("POST", "/internal/task-token", task.body()).body
    assert set(fresh) == {"capability_token", "lease_expires_at"}
    assert beat(task, fresh["capability_token"]).status == 200
    with Refusals(harness) as refusals:
        for fields in ({"attempt": 2}, {"attempt": 0}, {"lease_token": NOWHERE}):
            reply = harness.worker("POST", "/internal/task-token", task.body() | fields)
            error = refusals.check(reply, 409, "fenced")
            assert error["details"] == {"attempt": 1, "status": "Running"}
        reply = harness.worker("POST", "/internal/task-token", task.body() | {"task_id": NOWHERE})
        refusals.check(reply, 404, "task_not_found")
    assert task.call("complete", status="Completed").status == 200
    with Refusals(harness) as refusals:
        refusals.check(harness.worker("POST", "/internal/task-token", task.body()), 409, "fenced")


def test_an_always_on_attempt_has_an_hour(harness: DispatcherHarness) -> None:
    """No endpoint makes such a job yet, so the mint itself is asked."""
    task = claimed(harness)
    harness.sql("UPDATE tasks SET deadline_at = NULL WHERE task_id = $1", task.task_id)
    harness.sql("UPDATE jobs SET timeout_seconds = NULL WHERE job_id = $1", task.job["job_id"])
    harness.restart()
    fresh = harness.worker("POST", "/internal/task-token", task.body()).body["capability_token"]
    _, claims, _ = parts(fresh)
    assert claims["exp"] - claims["iat"] == ALWAYS_ON_LIFE_SECONDS
