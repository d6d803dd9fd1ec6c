"""Recordings: what is read is what the node said, and a damaged file is refused with words that help."""

import copy
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain import RECORDING, recorded
from tracelake.demo.chain import recording as module
from tracelake.demo.chain.packing import Packer
from tracelake.demo.chain.recording import Recording, RecordingError, write_recording

BLOCKS = 60


def _write(path: Path, blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> Path:
    write_recording(path, chain_id="0x1466a9", client="a node", about={"seed": 1}, blocks=blocks, count=len(blocks))
    return path


def _given(count: int = BLOCKS) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    return [copy.deepcopy((one.block, one.receipts)) for one in recorded(count)]


def test_what_is_read_is_what_was_written_down_to_the_order_of_keys(tmp_path: Path) -> None:
    blocks = _given()
    read = Recording(_write(tmp_path / "chain.jsonl.xz", blocks))
    assert len(read) == BLOCKS
    assert (read.head.chain_id, read.head.client, read.head.about) == ("0x1466a9", "a node", {"seed": 1})
    for _ in range(2):  # it can be read again
        again = [(one.block, one.receipts) for one in read]
        assert json.dumps(again) == json.dumps(blocks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _write(tmp_path_factory.mktemp("whole") / "chain.jsonl.xz", _given()).read_bytes()


def test_most_of_what_a_node_repeats_is_left_out() -> None:
    packer = Packer("0x1466a9")
    packed = [packer.pack(*one) for one in _given()]
    assert len(json.dumps(packed)) < 0.7 * len(json.dumps(_given()))


_PARTS = _given(20)[8:11] + _given(20)[15:17]
_KEYS = st.sampled_from(
    [
        *("blockHash", "blockNumber", "blockTimestamp", "transactionIndex", "gasPrice", "chainId", "v", "type", "from"),
        *("to", "gasUsed", "effectiveGasPrice", "removed", "logIndex", "address", "parentHash", "logsBloom"),
    ]
)
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 3),
    st.text("0x12ab", min_size=1),
    st.just("0x0"),
    st.just("0x1"),
    st.just([]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), _KEYS, _VALUES), max_size=12), st.lists(st.integers(0, 10**6), max_size=5)
)
def test_unusual_answers_come_back_too(changes: list[tuple[int, str, Any]], removals: list[int]) -> None:
    """Whatever follows from nothing (another value, a missing or an additional key) is kept as it was."""
    blocks = copy.deepcopy(_PARTS)
    parts = [part for block, receipts in blocks for part in _parts(block, receipts)]
    for where, key, value in changes:
        part = parts[where % len(parts)]
        if not (key == "logsBloom" and "cumulativeGasUsed" in part):  # a block's bloom is read off its receipts'
            part[key] = value
    for where in removals:
        part = parts[where % len(parts)]
        for key in ("blockTimestamp", "from", "removed"):
            part.pop(key, None)
    packer, unpacker = Packer("0x1466a9"), Packer("0x1466a9")
    for block, receipts in blocks:
        packed = json.loads(json.dumps(packer.pack(block, receipts)))
        unpacker.shapes = packer.shapes
        assert json.dumps(unpacker.unpack(*packed)) == json.dumps((block, receipts))


def test_what_is_equal_but_not_the_same_is_kept() -> None:
    block, receipts = next(one for one in _given() if one[1] and one[1][0]["logs"])
    receipts[0]["logs"][0]["removed"] = 0
    receipts[0]["blockTimestamp"] = float(receipts[0]["blockTimestamp"])
    packer = Packer("0x1466a9")
    assert json.dumps(packer.unpack(*packer.pack(block, receipts))) == json.dumps((block, receipts))


def _parts(block: dict[str, Any], receipts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    logs = [log for receipt in receipts for log in receipt["logs"]]
    return [block, *block["transactions"], *receipts, *logs]


def test_an_answer_that_cannot_be_kept_is_refused_when_it_is_written(tmp_path: Path) -> None:
    blocks = _given(3)
    blocks[2][0]["extraData"] = ""
    with pytest.raises(ValueError, match="extraData"):
        _write(tmp_path / "chain.jsonl.xz", blocks)


def test_reading_the_first_blocks_reads_no_more_of_the_file(tmp_path: Path) -> None:
    """A file that is damaged further on is good for what comes before."""
    whole = RECORDING.read_bytes()
    (tmp_path / "part.jsonl.xz").write_bytes(whole[: len(whole) // 4])
    reading = iter(Recording(tmp_path / "part.jsonl.xz"))
    assert [next(reading).number for _ in range(100)] == list(range(100))
    with pytest.raises(RecordingError, match=r"part.jsonl.xz is not a whole recording: .* cut short"):
        list(reading)


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    def changed(whole: bytes) -> bytes:
        return lzma.compress(b"".join(change(lzma.decompress(whole).splitlines(keepends=True))), preset=0)

    return changed


def _head(**fields: Any) -> Callable[[bytes], bytes]:
    return _lines(lambda lines: [json.dumps({**json.loads(lines[0]), **fields}).encode() + b"\n", *lines[1:]])


def _flip(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1 :]


def _relink(lines: list[bytes]) -> list[bytes]:
    line = json.loads(lines[5])
    line["block"][2] = "0x" + "12" * 32
    return [*lines[:5], json.dumps(line).encode() + b"\n", *lines[6:]]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda whole: b"", "cut short|ends before the end of its first line"),
        (lambda whole: b"PK\x03\x04 something else", "cut short or changed"),
        (lambda whole: whole[:-20], "cut short or changed"),
        (_flip, "cut short or changed"),
        (lambda whole: lzma.compress(b"[1,2]\n"), "first line is not that of a recording"),
        (lambda whole: lzma.compress(b'{"a": 1}\n'), "first line is not that of a recording"),
        (_head(format="other"), "first line is not that of a recording"),
        (_head(blocks=0), "first line is not that of a recording"),
        (_head(version=2), "version 2 of the format, and this program reads version 1"),
        (_head(blocks=BLOCKS + 1), f"ends before the end of block {BLOCKS}"),
        (_head(blocks=BLOCKS - 1), f"something follows the last block, {BLOCKS - 2}"),
        (_lines(lambda lines: [*lines[:4], *lines[5:]]), "block 3 calls itself 0x4"),
        (_lines(lambda lines: [*lines[:4], b"{}\n", *lines[5:]]), "the line of block 3 is not as it was written"),
        (_lines(lambda lines: [*lines[:4], lines[4][:-30] + b"\n", *lines[5:]]), "block 3 is not as it was written"),
        (_lines(lambda lines: [lines[0], b'{"block":[9],"receipts":[]}\n', *lines[2:]]), "block 0 is not as it was"),
        (_lines(_relink), "block 4 does not follow block 3"),
    ],
)
def test_a_damaged_file_is_refused(whole: bytes, tmp_path: Path, damage: Callable[[bytes], bytes], says: str) -> None:
    path = tmp_path / "chain.jsonl.xz"
    path.write_bytes(damage(whole))
    with pytest.raises(RecordingError, match=says) as refused:
        list(Recording(path))
    assert "chain.jsonl.xz" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_a_file_that_is_not_there_is_said_to_be_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"nothing.xz cannot be opened: No such file"):
        Recording(tmp_path / "nothing.xz")


def test_a_line_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "chain.jsonl.xz", _given())
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 2000)
    with pytest.raises(RecordingError, match=r"block \d+ is huge"):
        list(Recording(path))
