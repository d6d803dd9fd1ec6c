"""The policies of credentials that tasks mint: what one set of credentials may do, as an IAM session policy.

A policy grants `GetObject` below prefixes that may be read, `GetObject` and `PutObject` below prefixes that may be
written, and `ListBucket` with an `s3:prefix` condition. It is never empty: credentials without a session policy could
do all that the role may.

STS takes policies of at most 2,048 characters. `split_grants` divides grants that need more among several policies.
Each has some of the prefixes exactly as they were granted; a common parent would be shorter, and would grant its other
children too.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelake.model.prefixes import Prefix

POLICY_CHARACTERS = 2048
"""What STS takes, in AWS and in the embedded store."""


class PolicyTooLargeError(Exception):
    """Grants that do not fit into one policy."""


@dataclass(frozen=True, slots=True, order=True)
class PrefixGrant:
    prefix: Prefix
    writable: bool = False
    """Read and write; otherwise read only."""


def make_grants(readable: Iterable[str], writable: Iterable[str]) -> tuple[PrefixGrant, ...]:
    """The grants of canonical prefixes, those that may be written first, without what another one covers.

    Raises ValueError if one of them is not canonical.
    """
    grants = [PrefixGrant(Prefix.parse(text), writable=True) for text in writable]
    grants += [PrefixGrant(Prefix.parse(text)) for text in readable]
    distinct = dict.fromkeys(grants)
    by_uri = {(grant.prefix.uri, grant.writable) for grant in distinct}
    return tuple(grant for grant in distinct if not _is_covered(grant, by_uri))


def _is_covered(grant: PrefixGrant, others: set[tuple[str, bool]]) -> bool:
    """Looks the parents of the prefix up, so that many prefixes cost no comparison of all pairs."""
    uri = grant.prefix.uri
    if not grant.writable and (uri, True) in others:
        return True
    end = uri.rfind("/", 0, -1) + 1
    while end > len("s3://"):
        parent = uri[:end]
        if (parent, True) in others or (not grant.writable and (parent, False) in others):
            return True
        end = uri.rfind("/", 0, end - 1) + 1
    return False


def write_policy(grants: Sequence[PrefixGrant]) -> str:
    """The session policy of the grants, as compact JSON. Raises ValueError without any."""
    if not grants:
        raise ValueError("a session policy without grants")
    statements: list[dict[str, object]] = []
    for writable, actions in ((False, ["s3:GetObject"]), (True, ["s3:GetObject", "s3:PutObject"])):
        objects = [_objects(grant.prefix) for grant in grants if grant.writable is writable]
        if objects:
            statements.append({"Effect": "Allow", "Action": actions, "Resource": objects})
    for bucket in dict.fromkeys(grant.prefix.bucket for grant in grants):
        keys = [f"{grant.prefix.key}*" for grant in grants if grant.prefix.bucket == bucket]
        statements.append(
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [f"arn:aws:s3:::{bucket}"],
                "Condition": {"StringLike": {"s3:prefix": keys}},
            }
        )
    document = {"Version": "2012-10-17", "Statement": statements}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def split_grants(grants: Sequence[PrefixGrant], limit: int = POLICY_CHARACTERS) -> list[tuple[PrefixGrant, ...]]:
    """The grants in their order, in as few groups as their order allows, each with a policy of at most `limit`
    characters. Raises PolicyTooLargeError if one grant alone needs more."""
    groups: list[tuple[PrefixGrant, ...]] = []
    group: tuple[PrefixGrant, ...] = ()
    for grant in grants:
        if group and len(write_policy((*group, grant))) <= limit:
            group = (*group, grant)
            continue
        if len(write_policy((grant,))) > limit:
            raise PolicyTooLargeError(f"a prefix of {len(grant.prefix.uri):,} characters")
        if group:
            groups.append(group)
        group = (grant,)
    return [*groups, group] if group else groups


def _objects(prefix: Prefix) -> str:
    return f"arn:aws:s3:::{prefix.bucket}/{prefix.key}*"
