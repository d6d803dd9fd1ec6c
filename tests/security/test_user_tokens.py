"""User tokens: the stack's own and those of another issuer; every forgery we could think of is refused."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.api.issuer import EC, GOOD, RSA, RULES, b64, keys_of, refused, rsa_jwk, signed, verify
from tests.support.configs import USER_TOKEN_RULES
from tests.support.dispatcher import DispatcherHarness
from tracelake.adapters.keyring import PemKeyring
from tracelake.adapters.shared_secrets import utc_now
from tracelake.cli.token import command as token_command
from tracelake.stack.credentials import user_token
from tracelake.tokens.jwks import RingKeys
from tracelake.tokens.users import UserClaims, UserVerifier
from tracelake.tokens.verify import KeyDirectory
from tracelake.wire.contract import Role


def test_both_algorithms_of_another_issuer() -> None:
    for token in (signed(), signed(EC, "ES256", "e"), signed(aud=["other", "trace"]), signed(nbf=GOOD["iat"])):
        claims = verify(token)
        assert (claims.sub, claims.org, claims.roles) == ("ada@example.org", "acme", ["reader", "staff"])
    assert verify(signed(header={"typ": "at+jwt", "x5t": "abc", "x5t#S256": "abc"})).org == "acme"


def forged(header: dict[str, Any], signature: bytes = b"", **claims: Any) -> str:
    return f"{b64(header)}.{b64(GOOD | claims)}.{b64(signature)}"


def test_no_algorithm_but_the_keys_own() -> None:
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = f"{b64({'alg': 'HS256', 'kid': 'r', 'typ': 'JWT'})}.{b64(GOOD)}"
    for secret in (pem, rsa_jwk()["n"].encode(), b""):
        mac = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        assert refused(f"{text}.{b64(mac)}") == "credential_invalid"
    for alg in ("none", "None", "NONE", "", "HS256", "HS512", "PS256", "RS384", "RS512", "ES384", "EdDSA"):
        assert refused(forged({"alg": alg, "kid": "r", "typ": "JWT"})) == "credential_invalid"
    # The right signature by the right key, but the key was asked for by the other's name.
    assert refused(signed(RSA, "RS256", "e")) == "credential_invalid"
    assert refused(signed(EC, "ES256", "r")) == "credential_invalid"
    assert refused(signed(RSA, "RS512", "r")) == "credential_invalid"
    assert refused(signed(RSA, "PS256", "r")) == "credential_invalid"
    # A signature that the key would take, under the name of the other algorithm.
    lied = f"{b64({'alg': 'RS256', 'kid': 'e', 'typ': 'JWT'})}.{b64(GOOD)}"
    r, s = decode_dss_signature(EC.sign(lied.encode(), ec.ECDSA(SHA256())))
    assert refused(f"{lied}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}") == "credential_invalid"
    # A key whose own word is another algorithm is no key for either.
    assert refused(signed(), keys_of(rsa_jwk(alg="RS512"))) == "credential_unknown_key"
    assert refused(signed(), keys_of(rsa_jwk(alg="ES256"))) == "credential_unknown_key"
    assert refused(signed(), keys_of({"kty": "oct", "kid": "r", "k": b64(pem)})) == "credential_unknown_key"


def test_no_key_that_a_token_brings_along() -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for header in (
        {"jwk": rsa_jwk(other)},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"x5c": ["AAAA"]},
        {"crit": ["exp"]},
        {"b64": False},
        {"zip": "DEF"},
    ):
        assert refused(signed(other, header=header)) == "credential_malformed"
        assert refused(signed(RSA, header=header)) == "credential_malformed", "not even with the right key"
    assert refused(signed(other)) == "credential_invalid"


def test_a_key_must_be_named_and_known() -> None:
    assert refused(signed(kid=None)) == "credential_malformed"
    for kid in ("", "x", "R", "r ", "../r"):
        assert refused(signed(kid=kid)) == "credential_unknown_key"


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"iss": "https://id.example/"}, "credential_invalid"),
        ({"iss": ...}, "credential_malformed"),
        ({"aud": "trace.user"}, "credential_invalid"),
        ({"aud": []}, "credential_invalid"),
        ({"aud": ...}, "credential_malformed"),
        ({"exp": GOOD["iat"]}, "credential_expired"),
        ({"exp": GOOD["iat"] + 0.0}, "credential_expired"),
        ({"exp": ...}, "credential_malformed"),
        ({"exp": 10**12}, "credential_malformed"),
        ({"exp": 1e300}, "credential_malformed"),
        ({"exp": 10**400}, "credential_malformed"),
        ({"nbf": GOOD["iat"] + 1}, "credential_invalid"),
        ({"nbf": GOOD["iat"] + 0.5}, "credential_invalid"),
        ({"nbf": 10**400}, "credential_invalid"),
        ({"sub": ...}, "credential_malformed"),
        ({"sub": ""}, "credential_invalid"),
        ({"sub": "a\0b"}, "credential_invalid"),
        ({"sub": "a\nb"}, "credential_invalid"),
        ({"sub": "a\u202eb"}, "credential_invalid"),
        ({"sub": "a\u2066b"}, "credential_invalid"),
        ({"sub": "a\u200bb"}, "credential_invalid"),
        ({"sub": "a\x9bb"}, "credential_invalid"),
        ({"sub": "a\U000e0041b"}, "credential_invalid"),
        ({"sub": "a" * 201}, "credential_invalid"),
        ({"tenant": ...}, "credential_malformed"),
        ({"tenant": 7}, "credential_malformed"),
        ({"tenant": ["acme"]}, "credential_malformed"),
        ({"tenant": "Acme"}, "credential_invalid"),
        ({"tenant": "a\0"}, "credential_invalid"),
        ({"tenant": "acme\n"}, "credential_invalid"),
        ({"tenant": "a'; DROP"}, "credential_invalid"),
        ({"tenant": ..., "org": "acme"}, "credential_malformed"),
        ({"groups": ...}, "credential_malformed"),
        ({"groups": "admin"}, "credential_malformed"),
        ({"groups": ..., "roles": ["admin"]}, "credential_malformed"),
    ],
)
def test_claims(claims: dict[str, Any], code: str) -> None:
    assert refused(signed(**claims)) == code


def test_an_expiry_that_is_no_time() -> None:
    text = f"{b64({'alg': 'RS256', 'kid': 'r', 'typ': 'JWT'})}.{b64(json.dumps(GOOD | {'exp': 'later'}).encode())}"
    signature = RSA.sign(text.encode(), padding.PKCS1v15(), SHA256())
    assert refused(f"{text}.{b64(signature)}") == "credential_malformed"


def test_roles_include_those_below() -> None:
    def may(*held: str) -> list[bool]:
        claims = UserClaims(sub="a", org="b", roles=list(held), exp=0)
        return [claims.may(role) for role in Role]

    assert may() == [False, False, False]
    assert may("reader") == [True, False, False]
    assert may("writer") == [True, True, False]
    assert may("admin") == [True, True, True]
    assert may("Admin", "root", "") == [False, False, False]
    assert UserClaims(sub="a", org="b", roles=[], exp=0).may(None)


def own(tmp_path: Path) -> tuple[PemKeyring, Callable[[str], UserClaims]]:
    ring = PemKeyring.ensure(tmp_path / "keys/user", utc_now(), longest_token=timedelta(days=31))
    verifier = UserVerifier(RingKeys(KeyDirectory(ring)), USER_TOKEN_RULES)
    return ring, lambda token: asyncio.run(verifier.verify(token, utc_now()))


def test_the_command_prints_a_token_that_opens(tmp_path: Path) -> None:
    _, check = own(tmp_path)
    result = CliRunner().invoke(
        token_command, ["--home", str(tmp_path), "--role", "writer", "--subject", "ci", "--org", "acme", "--days", "30"]
    )
    assert result.exit_code == 0, result.output
    claims = check(result.output.strip())
    assert (claims.sub, claims.org, claims.roles) == ("ci", "acme", ["writer"])
    assert timedelta(days=29) < timedelta(seconds=claims.exp - utc_now().timestamp()) <= timedelta(days=30)


@pytest.mark.parametrize(
    "arguments",
    [["--role", "root", "--subject", "a"], ["--role", "reader"], ["--subject", "a"],
     ["--role", "reader", "--subject", "a b"], ["--role", "reader", "--subject", "a", "--org", "Acme"],
     ["--role", "reader", "--subject", "a", "--days", "31"], ["--role", "reader", "--subject", "a", "--days", "0"]],
)  # fmt: skip
def test_the_command_refuses(tmp_path: Path, arguments: list[str]) -> None:
    own(tmp_path)
    assert CliRunner().invoke(token_command, ["--home", str(tmp_path), *arguments]).exit_code == 2


def test_the_command_makes_no_keys_and_no_tokens_that_nobody_believes(tmp_path: Path) -> None:
    arguments = ["--home", str(tmp_path), "--role", "reader", "--subject", "a"]
    assert "no keys yet" in str(CliRunner().invoke(token_command, arguments).exception)
    assert not (tmp_path / "keys").exists()
    own(tmp_path)
    (tmp_path / "settings.toml").write_text('user_jwks = "/keys.json"\nuser_issuer = "https://id.example"\n')
    assert "user_jwks" in str(CliRunner().invoke(token_command, arguments).exception)


def test_no_token_outlives_its_key(tmp_path: Path) -> None:
    ring, _ = own(tmp_path)
    with pytest.raises(ValueError, match="outlives"):
        user_token(ring, RULES, subject="a", org="b", roles=[], now=utc_now(), life=timedelta(days=31))


def test_the_listener_refuses_what_the_verifier_refuses(harness: DispatcherHarness) -> None:
    """The whole way once: another issuer's good token is no token of this stack."""
    for token in (signed(), signed(EC, "ES256", "e")):
        reply = harness.call("public", "GET", "/v1/dags", None, {"authorization": f"Bearer {token}"})
        assert (reply.status, reply.code) == (401, "credential_unknown_key")
