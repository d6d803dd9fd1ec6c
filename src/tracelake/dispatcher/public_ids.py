"""Ids that leave the platform: numbers of sequences that all orgs share, as each org sees them.

Events, audit entries and published batches are numbered over all orgs. Whoever saw two such numbers could tell how much
the others did in between. So every number goes out through a permutation with a key of the org, and comes back through
its inverse: to its reader it is as good as random, and equal numbers stay equal. The order of rows is what a list says,
never the order of their ids.

The permutation is a Feistel network over 52 bits: ids stay numbers that every JSON reader holds exactly. Its keys are
derived from a secret in Postgres state, so all Dispatchers show the same ids.
"""

from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

from tracelake.db.transaction import Store
from tracelake.wire.base import MAX_CURSOR

LAST_ID = 2**52
"""The largest id that is shown; the smallest is 1. A sequence would take centuries to give out more numbers."""

_HALF_BITS = 26
_HALF = (1 << _HALF_BITS) - 1
_ROUNDS = 6

_KEY_MATERIAL = "SELECT secret FROM public_id_secret"


class IdPermutation:
    def __init__(self, key: bytes) -> None:
        self._rounds = [blake2b(bytes([number]), key=key, digest_size=4) for number in range(_ROUNDS)]

    def seal(self, number: int) -> int:
        """The id that people see. 0 stays 0: it stands before the first one."""
        if number == 0:
            return 0
        if not 1 <= number <= LAST_ID:
            raise ValueError("a sequence has given out more numbers than there are ids")
        left, right = (number - 1) >> _HALF_BITS, (number - 1) & _HALF
        for index in range(_ROUNDS):
            left, right = right, left ^ self._mix(index, right)
        return ((left << _HALF_BITS) | right) + 1

    def open(self, public_id: int) -> int:
        """The number behind an id. What lies above all ids stands above all numbers, too."""
        if public_id == 0:
            return 0
        if public_id > LAST_ID:
            return MAX_CURSOR
        left, right = (public_id - 1) >> _HALF_BITS, (public_id - 1) & _HALF
        for index in reversed(range(_ROUNDS)):
            left, right = right ^ self._mix(index, left), left
        return ((left << _HALF_BITS) | right) + 1

    def _mix(self, index: int, half: int) -> int:
        state = self._rounds[index].copy()
        state.update(half.to_bytes(4, "big"))
        return int.from_bytes(state.digest(), "big") & _HALF


@dataclass(frozen=True, slots=True)
class OrgIds:
    """One permutation for each sequence: equal numbers of two sequences are not recognised either."""

    events: IdPermutation
    routing: IdPermutation
    audit: IdPermutation
    batches: IdPermutation

    @classmethod
    def derive(cls, secret: bytes, org_id: UUID) -> "OrgIds":
        def permutation(sequence: bytes) -> IdPermutation:
            return IdPermutation(blake2b(org_id.bytes + sequence, key=secret, digest_size=32).digest())

        return cls(permutation(b"events"), permutation(b"routing"), permutation(b"audit"), permutation(b"batches"))


class PublicIds:
    """Reads the secret once. Callers hold no connection while they ask: the first one is answered by a statement."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._secret: bytes | None = None

    async def of(self, org_id: UUID) -> OrgIds:
        if self._secret is None:
            async with self._store.connection() as connection:
                self._secret = await connection.fetchval(_KEY_MATERIAL)
            assert self._secret is not None
        return OrgIds.derive(self._secret, org_id)
