"""Keccak-256 as Ethereum uses it: with the original padding, which is not that of SHA-3."""

from Crypto.Hash import keccak


def keccak256(message: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=message).digest()
