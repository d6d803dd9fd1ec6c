"""The parts of the recorder that need no node: how calls are encoded, and when what happens."""

from itertools import pairwise
from random import Random

from tools.recorder.abi import encode
from tools.recorder.days import BUSIEST, SLOT_SECONDS, moments

from tests.support.chain import RECORDING

START = 1_772_409_600


def _words(encoded: bytes) -> list[str]:
    assert len(encoded) % 32 == 0
    return [encoded[start : start + 32].hex().lstrip("0") or "0" for start in range(0, len(encoded), 32)]


def test_values_stand_in_the_head_and_what_has_a_length_after_it() -> None:
    encoded = encode(b"dave", True, [1, 2, 3])
    assert _words(encoded) == ["60", "1", "a0", "4", b"dave".hex().ljust(64, "0"), "3", "1", "2", "3"]
    assert encode("0x" + "ab" * 20, 2**256 - 1).hex() == "00" * 12 + "ab" * 20 + "ff" * 32
    assert _words(encode([b"", b"\x01"])) == ["20", "2", "40", "60", "0", "1", "1" + "0" * 62]


def test_the_same_seed_gives_the_same_days() -> None:
    days = list(moments(Random(3), START, 3000))
    assert days == list(moments(Random(3), START, 3000))
    assert days != list(moments(Random(4), START, 3000))
    assert all(later.timestamp - earlier.timestamp >= SLOT_SECONDS for earlier, later in pairwise(days))
    assert {moment.transactions for moment in days} >= {0, 1, BUSIEST}
    night = [moment.transactions for moment in days if 2 <= moment.hour < 5]
    noon = [moment.transactions for moment in days if 12 <= moment.hour < 15]
    assert sum(noon) / len(noon) > 5 * sum(night) / len(night)


def test_the_recording_stays_small() -> None:
    assert RECORDING.stat().st_size < 10_000_000
