"""Tokens and keys of another issuer."""

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tracelake.errors import TraceError
from tracelake.tokens.jwks import JwksKeys
from tracelake.tokens.users import UserClaims, UserTokenRules, UserVerifier

NOW = datetime(2026, 6, 1, tzinfo=UTC)
RULES = UserTokenRules(
    issuer="https://id.example",
    audience="trace",
    org_claim="tenant",
    roles_claim="groups",
    dags_claim="dags",
    read_dags_claim="read_dags",
)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
GOOD: dict[str, Any] = {
    "iss": "https://id.example",
    "aud": "trace",
    "sub": "ada@example.org",
    "exp": int(NOW.timestamp()) + 60,
    "iat": int(NOW.timestamp()),
    "tenant": "acme",
    "groups": ["reader", "staff"],
}


def b64(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def rsa_jwk(key: rsa.RSAPrivateKey = RSA, **fields: Any) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    size = (numbers.n.bit_length() + 7) // 8
    return {"kty": "RSA", "kid": "r", "n": b64(numbers.n.to_bytes(size, "big")), "e": "AQAB", "use": "sig"} | fields


def ec_jwk(key: ec.EllipticCurvePrivateKey = EC, **fields: Any) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    x, y = (b64(value.to_bytes(32, "big")) for value in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "kid": "e", "x": x, "y": y} | fields


def document(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def signed(key: Any = RSA, alg: str = "RS256", kid: str | None = "r", header: Any = None, **claims: Any) -> str:
    payload = {name: value for name, value in (GOOD | claims).items() if value is not ...}
    return jwt.encode(payload, key, alg, headers={} if kid is None else {"kid": kid} | (header or {}))


def keys_of(*keys: dict[str, Any]) -> JwksKeys:
    return JwksKeys(lambda: document(*keys), again_seconds=1, stale_seconds=10)


def verify(token: str, keys: JwksKeys | None = None, rules: UserTokenRules = RULES) -> UserClaims:
    return asyncio.run(UserVerifier(keys or keys_of(rsa_jwk(), ec_jwk()), rules).verify(token, NOW))


def refused(token: str, keys: JwksKeys | None = None) -> str:
    with pytest.raises(TraceError) as error:
        verify(token, keys)
    assert error.value.status == 401
    assert error.value.details == {}
    return error.value.code
