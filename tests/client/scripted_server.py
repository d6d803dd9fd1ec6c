"""A TLS server on loopback that answers each request with the bytes a test gives it."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CLOSE = b"<close>"
HANG = b"<hang>"


@dataclass(frozen=True)
class Certificates:
    ca_file: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """A self-signed certificate for 127.0.0.1 that is its own CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trace test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(parents=True, exist_ok=True)
    certificate_file, key_file = directory / "certificate.pem", directory / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Certificates(certificate_file, certificate_file, key_file)


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[Request], bytes | Awaitable[bytes]]


@dataclass
class ScriptedServer:
    """`script` gives the raw reply; `CLOSE` or `HANG` at its end say what follows it."""

    script: Script
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def drop_connections(self) -> None:
        for writer in list(self.writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (entry.split(": ", 1) for entry in rest)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(line, headers, body)
        self.requests.append(request)
        reply = self.script(request)
        if not isinstance(reply, bytes):
            reply = await reply
        ending = next((mark for mark in (CLOSE, HANG) if reply.endswith(mark)), b"")
        writer.write(reply.removesuffix(ending))
        await writer.drain()
        if ending == HANG:
            await reader.read()  # until the client goes away
        return not ending


@asynccontextmanager
async def serving(script: Script, certificates: Certificates) -> AsyncIterator[ScriptedServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certificate, certificates.key)
    server = ScriptedServer(script)
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=context)
    server.url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        server.drop_connections()
        for _ in range(100):
            if not server.writers:
                break
            await asyncio.sleep(0)


def reply(body: bytes, status: int = 200, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
