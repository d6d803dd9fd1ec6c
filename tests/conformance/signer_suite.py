"""Every promise of the Signer port. Each adapter subclasses `SignerSuite` and provides a `ring` fixture."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from tracelake.errors import TraceError
from tracelake.ports import PublicKey, Signer

START = datetime(2026, 1, 1, tzinfo=UTC)
LEAD = 300.0


class Ring(Protocol):
    longest_token: timedelta

    def open(self) -> Signer:
        """A new instance on the same keys, as another process would have. The first key signs from `START`."""
        ...

    def rotate(self, now: datetime, lead_seconds: float) -> str: ...


def verify(key: PublicKey, signature: bytes, message: bytes) -> None:
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(key.x, "big"), int.from_bytes(key.y, "big"), ec.SECP256R1())
    der = encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
    numbers.public_key().verify(der, message, ec.ECDSA(SHA256()))


def kids(signer: Signer, now: datetime) -> list[str]:
    return [key.kid for key in signer.public_keys(now)]


class SignerSuite:
    def test_a_new_ring_has_one_key_that_signs(self, ring: Ring) -> None:
        signer = ring.open()
        assert kids(signer, START) == [signer.current_kid(START)]

    def test_signatures_are_raw_and_verify(self, ring: Ring) -> None:
        signer = ring.open()
        (key,) = signer.public_keys(START)
        assert (len(key.x), len(key.y)) == (32, 32)
        for number in range(64):  # short r or s must be padded: one in 128 signatures has one
            message = b"message %d" % number
            signature = signer.sign(key.kid, message)
            assert len(signature) == 64
            verify(key, signature, message)
        with pytest.raises(InvalidSignature):
            verify(key, signature, b"another message")

    def test_an_unknown_key_signs_nothing(self, ring: Ring) -> None:
        with pytest.raises(KeyError):
            ring.open().sign("unknown", b"message")

    def test_the_coming_key_is_served_before_it_signs(self, ring: Ring) -> None:
        signer = ring.open()
        old = signer.current_kid(START)
        new = ring.rotate(START, LEAD)
        signer.refresh()
        assert new != old
        assert kids(signer, START) == [old, new]
        before, at = START + timedelta(seconds=LEAD - 0.001), START + timedelta(seconds=LEAD + 1)
        assert signer.current_kid(before) == old
        assert signer.current_kid(at) == new
        assert kids(signer, at) == [old, new]

    def test_the_lead_is_never_shorter_than_asked(self, ring: Ring) -> None:
        signer = ring.open()
        old = signer.current_kid(START)
        now = START + timedelta(milliseconds=900)
        ring.rotate(now, 2.5)
        signer.refresh()
        assert signer.current_kid(now + timedelta(seconds=2.4)) == old

    def test_a_retired_key_is_served_while_a_token_can_live(self, ring: Ring) -> None:
        signer = ring.open()
        old = signer.current_kid(START)
        new = ring.rotate(START, LEAD)
        signer.refresh()
        retired = START + timedelta(seconds=LEAD)
        assert kids(signer, retired + ring.longest_token - timedelta(seconds=1)) == [old, new]
        assert kids(signer, retired + ring.longest_token + timedelta(seconds=2)) == [new]
        # What it signed while it was current still verifies with the key that is served.
        (key,) = [key for key in signer.public_keys(retired) if key.kid == old]
        verify(key, signer.sign(old, b"message"), b"message")

    def test_one_rotation_at_a_time(self, ring: Ring) -> None:
        ring.rotate(START, LEAD)
        with pytest.raises(TraceError) as refused:
            ring.rotate(START + timedelta(seconds=1), LEAD)
        assert refused.value.code == "key_rotation_pending"
        ring.rotate(START + timedelta(seconds=LEAD + 1), LEAD)

    def test_instances_agree_without_talking(self, ring: Ring) -> None:
        signers = [ring.open() for _ in range(3)]
        now = START
        for _ in range(3):
            ring.rotate(now, LEAD)
            late = ring.open()
            for signer in signers:
                signer.refresh()
            for seconds in (0, LEAD, LEAD + 1, 10 * LEAD):
                at = now + timedelta(seconds=seconds)
                assert len({(one.current_kid(at), *kids(one, at)) for one in [*signers, late]}) == 1
            now += timedelta(seconds=2 * LEAD)

    def test_whatever_signs_is_served_to_every_verifier_of_one_cache_period(self, ring: Ring) -> None:
        """Through many rotations, a verifier that looked up to one lead ago knows the key that signs now."""
        signer = ring.open()
        now = START
        rotations = itertools.count()
        for step in range(200):
            if step % 40 == 0:
                next(rotations)
                ring.rotate(now, LEAD)
                signer.refresh()
            looked = max(START, now - timedelta(seconds=LEAD))
            assert signer.current_kid(now) in kids(signer, looked)
            assert signer.current_kid(looked) in kids(signer, now)
            now += timedelta(seconds=LEAD / 10)
