"""The Signer port on a directory of PEM files.

A file's name says everything about its key: `{signs_from}_{kid}.pem`. The newest key whose time has come
signs, a later one is coming, an earlier one is retired when the next one starts. Rotation is therefore one
atomic file creation, and any number of processes agree without talking to each other.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from jwt.algorithms import ECAlgorithm

from tracelake.errors import TraceError
from tracelake.ports import PublicKey
from tracelake.private_files import private_directory, write_private

_TIME = "%Y%m%dT%H%M%SZ"
_ES256 = ECAlgorithm(ECAlgorithm.SHA256, ec.SECP256R1)
LONGEST_TOKEN = timedelta(hours=25)
"""A retired key is served for as long as a token it signed can live: 24 h for a task's, and an hour more."""


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str
    signs_from: datetime
    private: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> PublicKey:
        numbers = self.private.public_key().public_numbers()
        return PublicKey(self.kid, numbers.x.to_bytes(32, "big"), numbers.y.to_bytes(32, "big"))


class PemKeyring:
    def __init__(self, directory: Path, *, longest_token: timedelta = LONGEST_TOKEN) -> None:
        self._directory = directory
        self._longest_token = longest_token
        self._keys: dict[str, _Key] = {}
        self._listing: tuple[str, ...] | None = None
        self.refresh()

    @classmethod
    def ensure(cls, directory: Path, now: datetime, *, longest_token: timedelta = LONGEST_TOKEN) -> "PemKeyring":
        """The ring of that directory, with a first key if it has none."""
        private_directory(directory)
        if not any(directory.glob("*_*.pem")):
            _create(directory, now)
        return cls(directory, longest_token=longest_token)

    def current_kid(self, now: datetime) -> str:
        return self._current(now).kid

    def sign(self, kid: str, message: bytes) -> bytes:
        return _ES256.sign(message, self._keys[kid].private)

    def public_keys(self, now: datetime) -> Sequence[PublicKey]:
        keys = self._ordered()
        valid_keys = [
            key
            for key, successor in zip(keys, [*keys[1:], None], strict=True)
            if successor is None or now < successor.signs_from + self._longest_token
        ]
        return [key.public for key in valid_keys]

    def refresh(self) -> None:
        listing = tuple(sorted(path.name for path in self._directory.glob("*_*.pem")))
        if listing == self._listing:
            return
        keys = {}
        for name in listing:
            try:
                key = self._known(name) or _load(self._directory / name)
            except FileNotFoundError:  # forgotten by a rotation since we looked
                continue
            keys[key.kid] = key
        self._keys, self._listing = keys, listing

    def rotate(self, now: datetime, *, lead_seconds: float) -> str:
        """Add the coming key: published now, signing after `lead_seconds`. Forget keys no token can name."""
        self.refresh()
        if any(key.signs_from > now for key in self._keys.values()):
            raise TraceError("key_rotation_pending")
        served = {key.kid for key in self.public_keys(now)}
        for name in self._listing or ():
            if _kid(name) not in served:
                (self._directory / name).unlink(missing_ok=True)
        # Names hold whole seconds: rounded up, so that the lead is never shorter than asked for, and never the
        # second of another key, so that the order of keys is the order of rotations.
        signs_from = now + timedelta(seconds=lead_seconds, microseconds=999_999)
        after_all = max(key.signs_from for key in self._keys.values()) + timedelta(seconds=1)
        kid = _create(self._directory, max(signs_from, after_all))
        self.refresh()
        return kid

    def replace(self, now: datetime) -> str:
        """After a leak: a new key signs at once, and every other one is forgotten with all that it signed."""
        self.refresh()
        kid = _create(self._directory, now)
        for name in self._listing or ():
            (self._directory / name).unlink(missing_ok=True)
        self.refresh()
        return kid

    def _known(self, name: str) -> _Key | None:
        return self._keys.get(_kid(name))

    def _ordered(self) -> list[_Key]:
        return sorted(self._keys.values(), key=lambda key: (key.signs_from, key.kid))

    def _current(self, now: datetime) -> _Key:
        keys = self._ordered()
        started = [key for key in keys if key.signs_from <= now]
        return started[-1] if started else keys[0]


def _create(directory: Path, signs_from: datetime) -> str:
    private = ec.generate_private_key(ec.SECP256R1())
    numbers = private.public_key().public_numbers()
    kid = hashlib.sha256(numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")).hexdigest()[:16]
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(directory / f"{signs_from.astimezone(UTC).strftime(_TIME)}_{kid}.pem", pem)
    return kid


def _load(path: Path) -> _Key:
    private = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != "secp256r1":
        raise ValueError("a signing key must be a P-256 private key")
    signs_from = datetime.strptime(path.stem.partition("_")[0], _TIME).replace(tzinfo=UTC)
    return _Key(_kid(path.name), signs_from, private)


def _kid(name: str) -> str:
    return name.removesuffix(".pem").partition("_")[2]
