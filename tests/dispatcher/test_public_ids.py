"""Ids that people see: a permutation for each org and sequence, with an inverse."""

import secrets
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.dispatcher import public_ids
from tracelake.dispatcher.public_ids import LAST_ID, IdPermutation, OrgIds
from tracelake.wire.base import MAX_CURSOR

NUMBERS = st.integers(1, LAST_ID)
KEYS = st.binary(min_size=32, max_size=32)
SECRET = secrets.token_bytes(32)


@given(KEYS, NUMBERS)
def test_there_and_back(key: bytes, number: int) -> None:
    ids = IdPermutation(key)
    assert 1 <= ids.seal(number) <= LAST_ID < 2**53, "also in a reader that holds numbers as floats"
    assert ids.open(ids.seal(number)) == number
    assert ids.seal(ids.open(number)) == number, "every id has a number behind it"


@given(KEYS, st.sets(NUMBERS, min_size=2, max_size=50))
def test_no_two_numbers_have_one_id(key: bytes, numbers: set[int]) -> None:
    ids = IdPermutation(key)
    assert len({ids.seal(number) for number in numbers}) == len(numbers)


def test_it_is_a_permutation_of_a_whole_small_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_ids, "_HALF_BITS", 5)
    monkeypatch.setattr(public_ids, "_HALF", 31)
    ids = IdPermutation(SECRET)
    sealed = [ids.seal(number) for number in range(1, 1025)]
    assert sorted(sealed) == list(range(1, 1025))
    assert [ids.open(public_id) for public_id in sealed] == list(range(1, 1025))


@given(st.uuids(), st.uuids(), st.integers(1, 10_000))
def test_orgs_and_sequences_have_ids_of_their_own(one: UUID, other: UUID, first: int) -> None:
    """Of a few neighbours: one of them may be the same by chance, all of them are not."""
    numbers = range(first, first + 4)
    mine, theirs = OrgIds.derive(SECRET, one), OrgIds.derive(SECRET, other)
    shown = [[ids.seal(number) for number in numbers] for ids in (mine.events, mine.routing, mine.audit, mine.batches)]
    assert len({tuple(ids) for ids in shown}) == 4
    again = OrgIds.derive(SECRET, one)
    assert [again.events.seal(number) for number in numbers] == shown[0], "in every process"
    assert (one == other) == ([theirs.events.seal(number) for number in numbers] == shown[0])


def test_neighbours_tell_nothing_of_each_other() -> None:
    """Steps between ids of successive numbers go up as often as down, over the whole range."""
    ids = [IdPermutation(SECRET).seal(number) for number in range(1, 2001)]
    rising = sum(one < other for one, other in pairwise(ids))
    assert 700 < rising < 1300
    assert len({public_id >> 48 for public_id in ids}) == 16


def test_ends_of_the_list_stay_ends() -> None:
    ids = IdPermutation(SECRET)
    assert (ids.seal(0), ids.open(0)) == (0, 0)
    assert ids.open(LAST_ID + 1) == ids.open(MAX_CURSOR) == MAX_CURSOR
