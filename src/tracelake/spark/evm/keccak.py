"""Keccak-256 as Ethereum has it (the padding of the original, not of SHA-3), for the hashes of event signatures.

Plain Python: a few hundred microseconds for each, so for planning, never for rows.
"""

_RATE = 136
_MASK = (1 << 64) - 1


def _constants() -> tuple[list[int], list[tuple[int, int]]]:
    """The constants of the 24 rounds, and for each step of rho and pi the lane and its rotation."""
    rounds, register = [], 1
    for _ in range(24):
        constant = 0
        for power in range(7):
            constant |= (register & 1) << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        rounds.append(constant)
    steps, x, y = [], 1, 0
    for number in range(24):
        x, y = y, (2 * x + 3 * y) % 5
        steps.append((x + 5 * y, (number + 1) * (number + 2) // 2 % 64))
    return rounds, steps


_ROUNDS, _STEPS = _constants()


def _rotate(lane: int, by: int) -> int:
    return ((lane << by) | (lane >> (64 - by))) & _MASK


def _permute(state: list[int]) -> None:
    for constant in _ROUNDS:
        parity = [state[x] ^ state[x + 5] ^ state[x + 10] ^ state[x + 15] ^ state[x + 20] for x in range(5)]
        for x in range(5):
            mixed = parity[x - 1] ^ _rotate(parity[(x + 1) % 5], 1)
            for y in range(0, 25, 5):
                state[x + y] ^= mixed
        moving = state[1]
        for lane, by in _STEPS:
            state[lane], moving = _rotate(moving, by), state[lane]
        for y in range(0, 25, 5):
            row = state[y : y + 5]
            for x in range(5):
                state[x + y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5])
        state[0] ^= constant


def keccak256(message: bytes) -> bytes:
    padded = bytearray(message)
    padded += bytes(_RATE - len(padded) % _RATE)
    padded[len(message)] ^= 0x01
    padded[-1] ^= 0x80
    state = [0] * 25
    for start in range(0, len(padded), _RATE):
        for lane in range(_RATE // 8):
            state[lane] ^= int.from_bytes(padded[start + 8 * lane : start + 8 * lane + 8], "little")
        _permute(state)
    return b"".join(lane.to_bytes(8, "little") for lane in state[:4])
