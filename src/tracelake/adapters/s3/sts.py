"""The CredentialMinter port over STS of an S3 endpoint: `AssumeRole` with a session policy, on the endpoint itself.

For the embedded store, and for others that answer STS where they answer S3. The role must trust the platform's own
identity alone, by its full ARN; otherwise a session could assume the role again and lose its policy
(`stack/store_roles.py`).
"""

import asyncio
import hashlib
import hmac
import http.client
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

from tracelake.adapters.s3.access import S3Access
from tracelake.errors import StoreUnavailableError
from tracelake.model.session_policy import POLICY_CHARACTERS, PolicyTooLargeError, PrefixGrant, write_policy
from tracelake.ports.credential_minter import MintedCredentials, check_mint

_FORM = "application/x-www-form-urlencoded; charset=utf-8"
_TIMEOUT_SECONDS = 10.0
_SIGNED = "content-type;host;x-amz-content-sha256;x-amz-date"


class EndpointMinter:
    def __init__(self, access: S3Access, role_arn: str) -> None:
        """`access` is the platform's identity, with an endpoint and keys."""
        if access.endpoint is None or access.access_key is None or access.secret_key is None:
            raise ValueError("STS of an endpoint needs its address and the platform's keys")
        self.endpoint: str | None = access.endpoint
        self.region = access.region
        self._url = urlsplit(access.endpoint)
        self._access_key = access.access_key
        self._secret_key = access.secret_key
        self._role_arn = role_arn
        self._buckets: set[str] = set()
        """Those that exist."""

    async def mint(self, grants: Sequence[PrefixGrant], *, session: str, seconds: int) -> MintedCredentials:
        check_mint(grants, seconds)
        policy = write_policy(grants)
        if len(policy) > POLICY_CHARACTERS:
            raise PolicyTooLargeError(f"a policy of {len(policy):,} characters")
        form = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._role_arn,
            "RoleSessionName": session,
            "Policy": policy,
            "DurationSeconds": str(seconds),
        }
        for bucket in {grant.prefix.bucket for grant in grants} - self._buckets:
            # The store makes a bucket with its first object, but not for a session. A refusal says that it exists, or
            # that somebody else makes the buckets here.
            await asyncio.to_thread(self._request, "s3", "PUT", f"/{bucket}", "")
            self._buckets.add(bucket)
        status, text = await asyncio.to_thread(self._request, "sts", "POST", "/", urlencode(form))
        if status != 200:
            if "PackedPolicyTooLarge" in text:
                raise PolicyTooLargeError("the policy, packed")
            raise StoreUnavailableError(
                f"The object store mints no credentials (status {status}): see its log and the role."
            )
        return MintedCredentials(
            _tag(text, "AccessKeyId"),
            _tag(text, "SecretAccessKey"),
            _tag(text, "SessionToken"),
            datetime.fromisoformat(_tag(text, "Expiration")),
        )

    def _request(self, service: str, method: str, path: str, body: str) -> tuple[int, str]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, self._sign(service, method, path, body))
            reply = connection.getresponse()
            return reply.status, reply.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailableError("The object store is not available right now.") from error
        finally:
            connection.close()

    def _sign(self, service: str, method: str, path: str, body: str) -> dict[str, str]:
        """The headers of a call under AWS Signature Version 4."""
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = (moment[:8], self.region, service, "aws4_request")
        digest = hashlib.sha256(body.encode()).hexdigest()
        lines = f"content-type:{_FORM}\nhost:{self._url.netloc}\nx-amz-content-sha256:{digest}\nx-amz-date:{moment}\n"
        request = hashlib.sha256(f"{method}\n{path}\n\n{lines}\n{_SIGNED}\n{digest}".encode()).hexdigest()
        key = f"AWS4{self._secret_key}".encode()
        for part in scope:
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{moment}\n{'/'.join(scope)}\n{request}"
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        credential = f"Credential={self._access_key}/{'/'.join(scope)}"
        return {
            "Content-Type": _FORM,
            "X-Amz-Content-Sha256": digest,
            "X-Amz-Date": moment,
            "Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={_SIGNED}, Signature={signature}",
        }


def _tag(text: str, name: str) -> str:
    match = re.search(f"<{name}>([^<]+)</{name}>", text)
    if match is None:
        raise StoreUnavailableError(f"The object store's reply has no {name}: expected the reply of AssumeRole.")
    return match[1]
