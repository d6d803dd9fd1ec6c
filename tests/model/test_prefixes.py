"""No text, however it is spelled, makes a policy wider than the prefixes that were granted.

`allows` reads policies as IAM does, where in doubt in favour of the intruder; `is_granted` knows directories and
nothing of policies. Both see the same random requests on the same random grants.
"""

import json
import random
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.model.prefixes import Prefix, lies_under
from tracelake.model.session_policy import (
    POLICY_CHARACTERS,
    PolicyTooLargeError,
    PrefixGrant,
    make_grants,
    split_grants,
    write_policy,
)

CANONICAL = ["s3://bucket/a/", "s3://bucket/a/b/", "s3://bucket/a/bc/", "s3://bucket2/a/b/", "s3://bucket/a/b/é/c d/"]
PIECES = [
    "s3://", "S3://", "s3:/", "s3a://", "arn:aws:s3:::", "bucket", "bucket2", "buc", "BUCKET", "b..t", "/", "//", ".",
    "..", "...", "a", "b", "bc", "%2e", "%2F", "%", "\\", "*", "?", "**", "${aws:userid}", "${*}", "$", "{", "}", "\n",
    "\r", "\t", "\x00", "\x7f", "\x85", "é", "e\u0301", "\u212b", "\ufb01", "\ud800", " ", "\u2215", "\uff0e",
    "\uff0f", "\u200b", "\u2028", '"', "'", '","Action":"s3:*', "]", "+", "#", "&", "=", ";", ":", "@", "|", "<",
    "_SUCCESS", "A", "\U0001f600", *CANONICAL,
]  # fmt: skip
Request = tuple[str, str, str]
"""An action, a bucket and the key, or the prefix of a listing."""


def spell(chance: random.Random) -> str:
    """Text that is almost a prefix more often than not."""
    match chance.randrange(4):
        case 0:
            return "".join(chance.choices(PIECES, k=chance.randrange(1, 7)))
        case 1:
            return "s3://bucket/" + "".join(chance.choices(PIECES, k=chance.randrange(1, 5))) + "/"
        case 2:
            text = chance.choice(CANONICAL)
            at = chance.randrange(len(text) + 1)
            return text[:at] + chance.choice(PIECES) + text[at + chance.randrange(2) :]
        case _:
            return chance.choice(CANONICAL)


def is_canonical(text: str) -> bool:
    """The rules once more, one by one."""
    try:
        scheme, nothing, bucket, *segments, end = text.split("/")
        text.encode()
    except ValueError:
        return False
    letters = set("abcdefghijklmnopqrstuvwxyz0123456789")
    return (
        (scheme, nothing, end) == ("s3:", "", "")
        and len(segments) > 0
        and 3 <= len(bucket) <= 63
        and set(bucket) <= letters | {".", "-"}
        and {bucket[0], bucket[-1]} <= letters
        and ".." not in bucket
        and not {"", ".", ".."} & set(segments)
        and not set("*?\\%") & set(text)
        and "${" not in text
        and not any(unicodedata.category(letter) == "Cc" for letter in text)
        and unicodedata.normalize("NFC", text) == text
        and len("/".join([*segments, ""]).encode()) <= 1024
    )


@lru_cache(maxsize=10_000)
def _pattern(text: str) -> "re.Pattern[str]":
    parts = re.split(r"(\*|\?|\$\{[^}]*\})", text)
    return re.compile(
        "".join("." if part == "?" else ".*" if i % 2 else re.escape(part) for i, part in enumerate(parts)), re.S
    )


def allows(policy: Any, request: Request) -> bool:
    action, bucket, key = request
    listing = action == "s3:ListBucket"
    resource = f"arn:aws:s3:::{bucket}" if listing else f"arn:aws:s3:::{bucket}/{key}"
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        assert statement.keys() <= {"Effect", "Action", "Resource", "Condition"}
        if not any(_pattern(name).fullmatch(action) for name in statement["Action"]):
            continue
        if not any(_pattern(pattern).fullmatch(resource) for pattern in statement["Resource"]):
            continue
        if "Condition" not in statement:
            return True
        assert statement["Condition"].keys() == {"StringLike"}
        if any(_pattern(pattern).fullmatch(key) for pattern in statement["Condition"]["StringLike"]["s3:prefix"]):
            return True
    return False


def is_granted(reads: Sequence[str], writes: Sequence[str], request: Request) -> bool:
    action, bucket, key = request
    prefixes = {"s3:GetObject": [*reads, *writes], "s3:PutObject": writes, "s3:ListBucket": [*reads, *writes]}.get(
        action, []
    )
    for prefix in prefixes:
        _, _, granted_bucket, *directories, _ = prefix.split("/")
        names = key.split("/")
        if bucket == granted_bucket and names[: len(directories)] == directories and len(names) > len(directories):
            return True
    return False


ACTIONS = [
    "s3:GetObject",
    "s3:GetObject",
    "s3:PutObject",
    "s3:ListBucket",
    "s3:DeleteObject",
    "s3:PutObjectAcl",
    "sts:AssumeRole",
]


def guess(chance: random.Random, texts: Sequence[str]) -> Request:
    """A request near to one of the prefixes."""
    bucket, _, key = chance.choice(texts).removeprefix("s3://").partition("/")
    match chance.randrange(6):
        case 0:
            key = key.rstrip("/")
        case 1:
            key += "".join(chance.choices(PIECES, k=2))
        case 2:
            key = key.rstrip("/") + chance.choice(PIECES)
        case 3:
            key = key[: chance.randrange(len(key) + 1)] + chance.choice(PIECES)
        case 4:
            bucket = chance.choice(["bucket", "bucket2", "buc", bucket + "x"])
        case _:
            key += "object"
    return chance.choice(ACTIONS), bucket, key


def check(chance: random.Random, texts: Sequence[str]) -> int:
    """Returns how many of the texts were canonical."""
    accepted = []
    for text in texts:
        try:
            prefix = Prefix.parse(text)
        except ValueError:
            assert not is_canonical(text), ascii(text)
            continue
        assert is_canonical(text), ascii(text)
        assert prefix.uri == text, "rejected or taken as it is, never repaired"
        accepted.append(text)
    if not accepted:
        return 0
    writes = [text for text in accepted if chance.random() < 0.3]
    reads = [text for text in accepted if text not in writes or chance.random() < 0.1]
    grants = make_grants(reads, writes)
    policy = json.loads(write_policy(grants))
    for _ in range(4):
        request = guess(chance, accepted)
        assert allows(policy, request) == is_granted(reads, writes, request), (reads, writes, request)
        _, bucket, key = request
        uri = f"s3://{bucket}/{key}"
        if any(lies_under(uri, text) for text in reads):
            assert is_granted(reads, writes, ("s3:GetObject", bucket, key)), (reads, request)
    return len(accepted)


@pytest.mark.parametrize(
    "inputs", [50_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_no_spelling_widens_a_grant(inputs: int) -> None:
    chance = random.Random(17)
    accepted = tried = 0
    while tried < inputs:
        texts = [spell(chance) for _ in range(chance.randrange(1, 5))]
        accepted += check(chance, texts)
        tried += len(texts)
    assert accepted > inputs / 10, "too few are canonical for the test to mean anything"
    assert tried - accepted > inputs / 10


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.text(max_size=30) | st.text(max_size=20).map(lambda text: f"s3://bucket/{text}/"), max_size=4),
    st.randoms(),
)
def test_arbitrary_text(texts: list[str], chance: random.Random) -> None:
    check(chance, texts)


def test_many_prefixes_are_divided_and_stay_as_narrow() -> None:
    chance = random.Random(5)
    reads = [
        f"s3://trace-datasets/datasets/{chance.getrandbits(128):032x}-abcd/{chance.getrandbits(128):032x}-abcd/"
        for _ in range(200)
    ]
    writes = [f"s3://trace-scratch/{name}/{chance.getrandbits(128):032x}-abcd/1/" for name in ("buffers", "scratch")]
    groups = split_grants(make_grants(reads, writes))
    assert 1 < len(groups) < 40
    assert sorted(grant for group in groups for grant in group) == sorted(make_grants(reads, writes)), "each is in one"
    texts = [write_policy(group) for group in groups]
    assert max(map(len, texts)) <= POLICY_CHARACTERS
    policies = [json.loads(text) for text in texts]
    for _ in range(2_000):
        request = guess(chance, [*reads, *writes])
        assert any(allows(policy, request) for policy in policies) == is_granted(reads, writes, request), request


def test_what_is_covered_is_left_out() -> None:
    nested = ["s3://bucket/a/", "s3://bucket/a/b/", "s3://bucket/c/", "s3://bucket/c/"]
    grants = make_grants(nested, ["s3://bucket/a/b/w/", "s3://bucket/c/"])
    assert [(grant.prefix.uri, grant.writable) for grant in grants] == [
        ("s3://bucket/a/b/w/", True),
        ("s3://bucket/c/", True),
        ("s3://bucket/a/", False),
    ]


def test_a_policy_is_never_empty() -> None:
    with pytest.raises(ValueError, match="without grants"):
        write_policy([])
    assert split_grants([]) == []


def test_a_prefix_that_no_policy_can_hold() -> None:
    with pytest.raises(PolicyTooLargeError):
        split_grants([PrefixGrant(Prefix.parse("s3://bucket/" + "a" * 1020 + "/"))], limit=1500)
