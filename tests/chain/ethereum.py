"""What a block commits to, computed here anew: Keccak-256, RLP, block and transaction hashes, tries and blooms.

Written for checking recorded chains and for making up consistent alternatives to their blocks; no part of the package.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

Json = dict[str, Any]
Item = bytes | Sequence["Item"]

_RATE = 136
_LANE = 64
_ROTATIONS = (
    *(0, 1, 62, 28, 27),
    *(36, 44, 6, 55, 20),
    *(3, 10, 43, 25, 39),
    *(41, 45, 15, 21, 8),
    *(18, 2, 61, 56, 14),
)
_ROUNDS = 24


def _round_constants() -> list[int]:
    """From the linear feedback shift register that the standard defines them by."""
    constants, register = [], 1
    for _ in range(_ROUNDS):
        constant = 0
        for power in range(7):
            if register & 1:
                constant |= 1 << ((1 << power) - 1)
            register <<= 1
            if register & 0x100:
                register ^= 0x171
        constants.append(constant)
    return constants


_CONSTANTS = _round_constants()


def keccak256(message: bytes) -> bytes:
    return keccak256_many([message])[0]


def keccak256_many(messages: Sequence[bytes]) -> list[bytes]:
    """Many at once: lane i of all messages stands side by side in one big integer, so one step serves all."""
    by_length: dict[int, list[int]] = {}
    for position, message in enumerate(messages):
        by_length.setdefault(len(message) // _RATE + 1, []).append(position)
    digests = [b""] * len(messages)
    for blocks, positions in by_length.items():
        padded = [_pad(messages[position], blocks * _RATE) for position in positions]
        for position, digest in zip(positions, _sponge(padded, blocks), strict=True):
            digests[position] = digest
    return digests


def _pad(message: bytes, length: int) -> bytes:
    padded = bytearray(message.ljust(length, b"\0"))
    padded[len(message)] ^= 0x01
    padded[-1] ^= 0x80
    return bytes(padded)


def _sponge(padded: list[bytes], blocks: int) -> list[bytes]:
    count = len(padded)
    ones = int.from_bytes((1).to_bytes(8, "little") * count, "little")
    lanes = [0] * 25
    for block in range(blocks):
        for lane in range(_RATE // 8):
            start = block * _RATE + lane * 8
            lanes[lane] ^= int.from_bytes(b"".join(message[start : start + 8] for message in padded), "little")
        lanes = _permute(lanes, ones)
    out = [lane.to_bytes(8 * count, "little") for lane in lanes[:4]]
    return [b"".join(lane[8 * number : 8 * number + 8] for lane in out) for number in range(count)]


@lru_cache(maxsize=4)
def _lowest(ones: int) -> list[int]:
    """For each number of bits, the mask of so many lowest bits of every lane."""
    return [ones * ((1 << bits) - 1) for bits in range(_LANE + 1)]


def _permute(a: list[int], ones: int) -> list[int]:
    low = _lowest(ones)
    full = low[_LANE]

    def rotate(value: int, by: int) -> int:
        return ((value & low[_LANE - by]) << by) | ((value >> (_LANE - by)) & low[by]) if by else value

    for constant in _CONSTANTS:
        c = [a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20] for x in range(5)]
        d = [c[x - 1] ^ rotate(c[(x + 1) % 5], 1) for x in range(5)]
        b = [0] * 25
        for y in range(5):
            for x in range(5):
                b[y + 5 * ((2 * x + 3 * y) % 5)] = rotate(a[x + 5 * y] ^ d[x], _ROTATIONS[x + 5 * y])
        a = [
            b[x + 5 * y] ^ ((b[(x + 1) % 5 + 5 * y] ^ full) & b[(x + 2) % 5 + 5 * y])
            for y in range(5)
            for x in range(5)
        ]
        a[0] ^= ones * constant
    return a


def rlp(item: Item) -> bytes:
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _prefix(0x80, len(item)) + item
    body = b"".join(map(rlp, item))
    return _prefix(0xC0, len(body)) + body


def _prefix(base: int, length: int) -> bytes:
    if length < 56:
        return bytes([base + length])
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(size)]) + size


def data(given: str | None) -> bytes:
    return bytes.fromhex(given[2:]) if given else b""


def quantity(given: str | int) -> bytes:
    number = given if isinstance(given, int) else int(given, 16)
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def header(block: Json) -> bytes:
    fields: list[Item] = [
        *(data(block[key]) for key in ("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot")),
        *(data(block[key]) for key in ("receiptsRoot", "logsBloom")),
        *(quantity(block[key]) for key in ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")),
        *(data(block[key]) for key in ("extraData", "mixHash", "nonce")),
        quantity(block["baseFeePerGas"]),
        data(block["withdrawalsRoot"]),
        quantity(block["blobGasUsed"]),
        quantity(block["excessBlobGas"]),
        data(block["parentBeaconBlockRoot"]),
        data(block["requestsHash"]),
    ]
    return rlp(fields)


def transaction(given: Json) -> bytes:
    """As it stands in the block's trie; its hash is the Keccak-256 of these bytes."""
    kind = int(given["type"], 16)
    to = data(given["to"])
    if kind == 0:
        fields = [quantity(given[key]) for key in ("nonce", "gasPrice", "gas")]
        signature = [quantity(given[key]) for key in ("v", "r", "s")]
        return rlp([*fields, to, quantity(given["value"]), data(given["input"]), *signature])
    prices = ("gasPrice",) if kind == 1 else ("maxPriorityFeePerGas", "maxFeePerGas")
    parts: list[Item] = [quantity(given[key]) for key in ("chainId", "nonce", *prices, "gas")]
    parts += [to, quantity(given["value"]), data(given["input"])]
    parts.append([[data(one["address"]), [data(key) for key in one["storageKeys"]]] for one in given["accessList"]])
    if kind == 3:
        parts += [quantity(given["maxFeePerBlobGas"]), [data(blob) for blob in given["blobVersionedHashes"]]]
    if kind == 4:
        parts.append([_authorization(one) for one in given["authorizationList"]])
    parts += [quantity(given[key]) for key in ("yParity", "r", "s")]
    return bytes([kind]) + rlp(parts)


def _authorization(given: Json) -> Item:
    nonce = [quantity(given["chainId"]), data(given["address"]), quantity(given["nonce"])]
    return [*nonce, *(quantity(given[key]) for key in ("yParity", "r", "s"))]


def receipt(given: Json) -> bytes:
    logs: list[Item] = [
        [data(log["address"]), [data(topic) for topic in log["topics"]], data(log["data"])] for log in given["logs"]
    ]
    kind = int(given["type"], 16)
    body = rlp([quantity(given["status"]), quantity(given["cumulativeGasUsed"]), data(given["logsBloom"]), logs])
    return bytes([kind]) + body if kind else body


def trie_root(values: Sequence[bytes]) -> bytes:
    """The root of the trie that maps rlp(index) to each value, as a block has one of transactions and of receipts."""
    if not values:
        return keccak256(rlp(b""))
    entries = [(tuple(_nibbles(rlp(quantity(index)))), value) for index, value in enumerate(values)]
    return keccak256(rlp(_node(entries)))


def _nibbles(key: bytes) -> Iterable[int]:
    for byte in key:
        yield from divmod(byte, 16)


def _node(entries: list[tuple[tuple[int, ...], bytes]]) -> Item:
    if len(entries) == 1:
        path, value = entries[0]
        return [_path(path, leaf=True), value]
    shared = 0
    while len({path[shared] for path, _ in entries}) == 1:
        shared += 1
    if shared:
        rest = [(path[shared:], value) for path, value in entries]
        return [_path(entries[0][0][:shared], leaf=False), _child(rest)]
    return [*(_child([(path[1:], value) for path, value in entries if path[0] == nibble]) for nibble in range(16)), b""]


def _child(entries: list[tuple[tuple[int, ...], bytes]]) -> Item:
    if not entries:
        return b""
    node = _node(entries)
    encoded = rlp(node)
    return node if len(encoded) < 32 else keccak256(encoded)


def _path(nibbles: tuple[int, ...], *, leaf: bool) -> bytes:
    flag = 2 if leaf else 0
    whole = (flag + 1, *nibbles) if len(nibbles) % 2 else (flag, 0, *nibbles)
    return bytes(high * 16 + low for high, low in zip(whole[::2], whole[1::2], strict=True))


def bloom_bits(hashed: bytes) -> int:
    """The three bits of an address or topic, of which the Keccak-256 is given."""
    bits = 0
    for start in (0, 2, 4):
        bits |= 1 << (int.from_bytes(hashed[start : start + 2], "big") & 2047)
    return bits
