"""RLP, the encoding that Ethereum hashes, in hex text.

Answers of nodes are hex text already. So values are joined as text, and become bytes once, when they are hashed. What
is encoded must be exact, or two different contents could have one encoding: half a byte and a missing value are refused
here, other letters by `hash_text`. Every refusal is a ValueError.
"""

from tracelake.spark.evm.keccak import keccak256

_MOST_SHORT = 55
_STRINGS = tuple(f"{0x80 + size:02x}" for size in range(_MOST_SHORT + 1))
_LISTS = tuple(f"{0xC0 + size:02x}" for size in range(_MOST_SHORT + 1))
EMPTY_STRING = _STRINGS[0]


def encode_string(digits: str) -> str:
    """Bytes, two digits for each."""
    size, odd = divmod(len(digits), 2)
    if odd:
        raise ValueError("half a byte")
    if size == 1 and digits < "80":
        return digits
    return (_STRINGS[size] if size <= _MOST_SHORT else _long_prefix(0xB7, size)) + digits


def encode_list(items: str) -> str:
    """`items`: their encodings, joined."""
    size = len(items) // 2
    return (_LISTS[size] if size <= _MOST_SHORT else _long_prefix(0xF7, size)) + items


def encode_data(text: str | None) -> str:
    """Bytes as nodes write them: 0x1f."""
    return encode_string(_digits(text))


def encode_quantity(text: str | None) -> str:
    """A number as nodes write it: 0x1f4. It has no zeros in front."""
    digits = _digits(text).lstrip("0")
    return encode_string("0" + digits if len(digits) & 1 else digits)


def hash_text(text: str) -> str:
    """The hash of what was encoded, as digits."""
    raw = bytes.fromhex(text)
    if 2 * len(raw) != len(text):
        raise ValueError("spaces between hex digits")
    return keccak256(raw).hex()


def _digits(text: str | None) -> str:
    if text is None or text[:2] != "0x":
        raise ValueError("no hex value")
    return text[2:]


def _long_prefix(base: int, size: int) -> str:
    digits = f"{size:x}"
    digits = "0" + digits if len(digits) & 1 else digits
    return f"{base + len(digits) // 2:02x}{digits}"
