"""TLS: a chain that real clients accept, renewed when it must be and only then."""

import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tracelake.stack.tls import TlsFiles, ensure_tls

NOW = datetime.now(UTC)


def at(moment: datetime) -> Callable[[], datetime]:
    return lambda: moment


def handshake(files: TlsFiles, name: str, ca: Path | None = None) -> str | None:
    """Serve one connection with the server pair, connect as a client that trusts only the CA."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files.certificate, files.key)
    client_context = ssl.create_default_context(cafile=ca or files.ca)
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            with server_context.wrap_socket(left, server_side=True) as secure:
                secure.recv(1)
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client_context.wrap_socket(right, server_hostname=name) as secure:
            secure.send(b"x")
            return secure.version()
    finally:
        right.close()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "10.1.2.3"])
def test_clients_that_trust_the_ca_accept_every_name(tmp_path: Path, name: str) -> None:
    assert handshake(ensure_tls(tmp_path, "10.1.2.3"), name) == "TLSv1.3"


def test_another_name_or_another_ca_is_refused(tmp_path: Path) -> None:
    files = ensure_tls(tmp_path / "a", "127.0.0.1")
    other = ensure_tls(tmp_path / "b", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "localhost", ca=other.ca)


def test_everything_is_private(tmp_path: Path) -> None:
    ensure_tls(tmp_path / "tls", "127.0.0.1")
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "tls").iterdir())


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    files = ensure_tls(tmp_path, "127.0.0.1")
    before = [path.read_bytes() for path in (files.ca, files.ca_key, files.certificate, files.key)]
    assert ensure_tls(tmp_path, "127.0.0.1") == files
    assert [p.read_bytes() for p in (files.ca, files.ca_key, files.certificate, files.key)] == before


def test_the_server_certificate_is_renewed_in_its_last_month_under_the_same_ca(tmp_path: Path) -> None:
    files = ensure_tls(tmp_path, "127.0.0.1", now=at(NOW - timedelta(days=334)))
    ca, certificate = files.ca.read_bytes(), files.certificate.read_bytes()
    ensure_tls(tmp_path, "127.0.0.1", now=at(NOW))
    assert files.certificate.read_bytes() == certificate
    ensure_tls(tmp_path, "127.0.0.1", now=at(NOW + timedelta(days=2)))
    assert files.certificate.read_bytes() != certificate
    assert files.ca.read_bytes() == ca


def test_other_names_make_another_server_certificate(tmp_path: Path) -> None:
    files = ensure_tls(tmp_path, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "trace.internal")
    ensure_tls(tmp_path, "trace.internal")
    assert handshake(files, "trace.internal") == "TLSv1.3"


@pytest.mark.parametrize("lost", ["ca.pem", "ca.key", "server.pem", "server.key"])
@pytest.mark.parametrize("how", ["missing", "cut", "of another pair"])
def test_a_crash_between_the_files_is_repaired(tmp_path: Path, lost: str, how: str) -> None:
    files = ensure_tls(tmp_path / "tls", "127.0.0.1")
    path = tmp_path / "tls" / lost
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:40])
    else:
        ensure_tls(tmp_path / "other", "127.0.0.1")
        path.write_bytes((tmp_path / "other" / lost).read_bytes())
    ensure_tls(tmp_path / "tls", "127.0.0.1")
    assert handshake(files, "localhost") == "TLSv1.3"
