"""TLS of a local stack: a CA made at first start, and a server certificate that renews itself.

- The CA lives 10 years and is made once; programs trust exactly `ca.pem` (its path is in `stack.json`).
- The server certificate lives 1 year; it is made again at a start when less than 30 days are left, when the
  names it must carry have changed, or when it does not fit its key or the CA.
- A key is written before the certificate that needs it, each file in one step. A crash in between leaves a
  pair that does not fit, which the next start sees and makes again.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tracelake.settings.home import private_directory, write_private

_CA_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=30)
# A clock that is a little behind must not refuse a certificate made a moment ago.
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths: `ca` is for clients; `certificate` (with `key`) is for the listeners."""

    ca: Path
    ca_key: Path
    certificate: Path
    key: Path


def tls_files(directory: Path) -> TlsFiles:
    return TlsFiles(
        ca=directory / "ca.pem",
        ca_key=directory / "ca.key",
        certificate=directory / "server.pem",
        key=directory / "server.key",
    )


def _now() -> datetime:
    return datetime.now(UTC)


def ensure_tls(directory: Path, *bind_hosts: str, now: Callable[[], datetime] = _now) -> TlsFiles:
    """Make or renew what is missing or nearly over; leave the rest alone. The certificate names every host."""
    private_directory(directory)
    files = tls_files(directory)
    ca_key, ca = _ensure_ca(files, now())
    names = _names(bind_hosts)
    if not _server_is_good(files, ca, names, now()):
        _make_server(files, ca_key, ca, names, now())
    return files


def certificate_end(path: Path) -> datetime:
    """The end of the validity of the certificate in that file."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def _ensure_ca(files: TlsFiles, now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key, certificate = _read_key(files.ca_key), _read_certificate(files.ca)
    if key is not None and certificate is not None and _ca_is_good(key, certificate, now):
        return key, certificate
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trace local CA")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(files.ca_key, key, files.ca, certificate)
    return key, certificate


def _ca_is_good(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, now: datetime) -> bool:
    return _fits(key, certificate) and now < certificate.not_valid_after_utc - _RENEW_BEFORE


def _make_server(
    files: TlsFiles,
    ca_key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    names: list[x509.GeneralName],
    now: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trace local stack")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(min(now + _SERVER_LIFE, ca.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_pair(files.key, key, files.certificate, certificate)


def _server_is_good(files: TlsFiles, ca: x509.Certificate, names: list[x509.GeneralName], now: datetime) -> bool:
    key, certificate = _read_key(files.key), _read_certificate(files.certificate)
    if key is None or certificate is None or not _fits(key, certificate):
        return False
    if now > certificate.not_valid_after_utc - _RENEW_BEFORE or now < certificate.not_valid_before_utc:
        return False
    try:
        certificate.verify_directly_issued_by(ca)
        carried = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return list(carried) == names


def _names(bind_hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    for host in bind_hosts:
        own: x509.GeneralName
        try:
            own = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            own = x509.DNSName(host)
        if own not in names:
            names.append(own)
    return names


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _fits(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    return key.public_key() == certificate.public_key()


def _write_pair(key_path: Path, key: ec.EllipticCurvePrivateKey, path: Path, certificate: x509.Certificate) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(key_path, pem)
    write_private(path, certificate.public_bytes(serialization.Encoding.PEM))


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _read_certificate(path: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
