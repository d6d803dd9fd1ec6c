"""The PEM key ring keeps the port's promises, and its files are private, few and named by what they say."""

import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.conformance.signer_suite import LEAD, START, Ring, SignerSuite, kids
from tracelake.adapters.keyring import LONGEST_TOKEN, PemKeyring


class PemRing:
    longest_token = LONGEST_TOKEN

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        PemKeyring.ensure(directory, START)

    def open(self) -> PemKeyring:
        return PemKeyring(self.directory)

    def rotate(self, now: datetime, lead_seconds: float) -> str:
        return PemKeyring(self.directory).rotate(now, lead_seconds=lead_seconds)


@pytest.fixture
def ring(tmp_path: Path) -> PemRing:
    return PemRing(tmp_path / "keys")


class TestPemKeyring(SignerSuite):
    def test_ensure_keeps_what_is_there(self, ring: PemRing) -> None:
        before = ring.open().current_kid(START)
        assert PemKeyring.ensure(ring.directory, START + timedelta(days=9)).current_kid(START) == before

    def test_files_are_private(self, ring: PemRing) -> None:
        ring.rotate(START, LEAD)
        assert ring.directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in ring.directory.iterdir()} == {0o600}

    def test_a_key_that_no_token_can_name_is_deleted_by_the_next_rotation(self, ring: PemRing) -> None:
        first = ring.open().current_kid(START)
        second = ring.rotate(START, LEAD)
        soon = START + timedelta(seconds=LEAD + 1)
        third = ring.rotate(soon, LEAD)
        assert {path.stem.partition("_")[2] for path in ring.directory.iterdir()} == {first, second, third}
        fourth = ring.rotate(soon + LONGEST_TOKEN + timedelta(seconds=LEAD + 2), LEAD)
        assert {path.stem.partition("_")[2] for path in ring.directory.iterdir()} == {third, fourth}

    def test_a_key_deleted_by_another_process_is_forgotten(self, ring: PemRing) -> None:
        signer = ring.open()
        ring.rotate(START, LEAD)
        signer.refresh()
        oldest = min(ring.directory.iterdir())
        oldest.unlink()
        signer.refresh()
        assert len(kids(signer, START)) == 1

    def test_a_file_that_vanishes_while_it_is_listed(self, ring: PemRing, monkeypatch: pytest.MonkeyPatch) -> None:
        signer = ring.open()
        ghost = ring.directory / "20250101T000000Z_ghost.pem"
        listed = [*ring.directory.glob("*_*.pem"), ghost]
        monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(listed))
        signer.refresh()
        assert len(kids(signer, START)) == 1

    def test_only_p256_keys_are_taken(self, ring: PemRing) -> None:
        for private in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
            pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            wrong = ring.directory / "20260101T000000Z_wrong.pem"
            wrong.write_bytes(pem)
            with pytest.raises(ValueError, match="P-256"):
                ring.open()
            wrong.unlink()

    def test_threads_may_sign_and_refresh_during_rotations(self, ring: PemRing) -> None:
        signer = ring.open()
        failures: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                while not done.is_set():
                    signer.refresh()
                    kid = signer.current_kid(START)
                    signer.sign(kid, b"message")
                    assert kid in kids(signer, START)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        now = START
        for _ in range(10):
            ring.rotate(now, 1)
            now += timedelta(seconds=3)
        done.set()
        for thread in threads:
            thread.join(30)
        assert failures == []

    def test_it_is_the_port(self, ring: PemRing) -> None:
        port: Ring = ring
        assert port.open().current_kid(START)
