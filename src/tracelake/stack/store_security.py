"""The security settings of the embedded object store: who may use the ports between its parts.

Every inner port, HTTP or gRPC, asks for a client certificate of an authority that exists for one run: its private key
is never written, and the one certificate that it signed serves all parts, which are one process. Other users of the
machine, and code in a sandbox, cannot read the key of that certificate, so the TLS handshake refuses them before a
request is read. The signing keys of volumes and filer stay as a second line.
"""

import ipaddress
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tracelake.private_files import private_directory, write_private

_SIGNING_KEYS = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
_GRPC_PARTS = ("master", "volume", "filer", "s3", "client")
_HTTP_PARTS = ("master", "volume", "filer")
_LIFE = timedelta(days=3650)
"""Longer than any run: a process reads its certificate once."""
_SKEW = timedelta(days=1)
_PEM = serialization.Encoding.PEM


def write_security(directory: Path) -> None:
    """Write certificates, keys and `security.toml` of one run, readable by their owner alone."""
    private_directory(directory)
    ca, certificate, key = directory / "ca.pem", directory / "inner.pem", directory / "inner.key"
    _write_certificates(ca, certificate, key)
    pair = {"cert": str(certificate), "key": str(key)}
    sections: dict[str, dict[str, str | bool]] = {name: {"key": secrets.token_hex(24)} for name in _SIGNING_KEYS}
    sections["grpc"] = {"ca": str(ca)}
    sections |= {f"grpc.{part}": {**pair} for part in _GRPC_PARTS}
    sections |= {f"https.{part}": {**pair, "ca": str(ca)} for part in _HTTP_PARTS}
    sections["https.client"] = {**pair, "ca": str(ca), "enabled": True}
    write_private(directory / "security.toml", _toml(sections))


def _toml(sections: dict[str, dict[str, str | bool]]) -> str:
    """A string of JSON is one of TOML."""
    lines: list[str] = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _write_certificates(ca_file: Path, certificate_file: Path, key_file: Path) -> None:
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, own_name = _name("Trace object store CA"), _name("Trace object store")
    ca = (
        _certificate(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _certificate(own_name, ca_name, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([loopback, x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(key_file, key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    write_private(ca_file, ca.public_bytes(_PEM))
    write_private(certificate_file, certificate.public_bytes(_PEM))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
    )
