"""The ports between the parts of the embedded object store answer nobody but the store itself."""

import datetime
import hashlib
import hmac
import http.client
import os
import stat
from pathlib import Path

import pytest

from tests.security.conftest import RunningStore
from tests.security.port_probe import NOBODY, Probe, list_listeners
from tracelake.stack.seaweedfs import EmbeddedObjectStore
from tracelake.stack.store_security import write_security

OTHER_USER = NOBODY if os.geteuid() == 0 else None
"""Without the rights to become another user, the same one asks, who does not read the store's keys for it."""
REFUSED_BY_TLS = "Client sent an HTTP request to an HTTPS server."


def _is_open(answer: str) -> bool:
    """Whether a server of the protocol answered, rather than nobody or the TLS layer in front of it."""
    return bool(answer) and REFUSED_BY_TLS not in answer and not answer.startswith("\x15\x03")


def test_no_inner_port_answers_another_user(running: RunningStore, tmp_path: Path) -> None:
    store, process = running
    ports, _ = list_listeners(process.pid)
    assert len(ports) >= 8
    write_security(tmp_path / "own")  # an authority of the intruder's own, with the same names
    own = (str(tmp_path / "own/inner.pem"), str(tmp_path / "own/inner.key"))
    answers = Probe(ports, uid=OTHER_USER, certificates={"own certificate": own}).run()
    public = answers.pop(str(store.ports.s3))
    assert {port: asked for port, asked in _open(answers).items() if asked} == {}
    # Behind the one that is there for others, nothing is given to somebody without a name.
    assert {name: text[:12] for name, text in public.items() if text and not text.startswith("HTTP/1.1 4")} == {}


def test_the_probe_sees_an_open_port(running: RunningStore) -> None:
    """With the store's own certificate the same requests are answered."""
    store, process = running
    ports, _ = list_listeners(process.pid)
    inner = store.config_dir / ".seaweedfs"
    answers = Probe(ports, certificates={"the store's": (str(inner / "inner.pem"), str(inner / "inner.key"))}).run()
    assert all(asked for port, asked in _open(answers).items() if port != str(store.ports.s3))
    # An id, or that it has no volume free for one at this moment: either is the master's own answer.
    assert "Content-Type: application/json" in answers[str(store.ports.master)]["assign, the store's"]


def _open(answers: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    return {port: [name for name, answer in asked.items() if _is_open(answer)] for port, asked in answers.items()}


def test_sockets_and_files_are_their_owners(running: RunningStore) -> None:
    store, process = running
    _, sockets = list_listeners(process.pid)
    named = [path for path in sockets if not path.startswith("@")]
    assert len(named) >= 6
    for path in named:
        reachable = [Path(path), *Path(path).parents]
        assert any(_is_private(place) for place in reachable), path
    for place in (store.data_dir, store.config_dir, store.access_file):
        assert _is_private(place), place
    if OTHER_USER is not None:
        answers = Probe([], named, uid=OTHER_USER).run()
        assert {path: asked for path, asked in _open(answers).items() if asked} == {}


def _is_private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    ("service", "form"),
    [
        ("iam", "Action=CreateUser&UserName=intruder&Version=2010-05-08"),
        ("iam", "Action=CreateAccessKey&UserName=platform&Version=2010-05-08"),
        ("iam", "Action=PutUserPolicy&UserName=platform&PolicyName=x&PolicyDocument=%7B%7D&Version=2010-05-08"),
        ("sts", "Action=AssumeRole&RoleArn=arn:aws:iam::000000000000:role/x&RoleSessionName=xx&Version=2011-06-15"),
    ],
)
def test_the_platforms_key_makes_no_keys(running: RunningStore, service: str, form: str) -> None:
    """Whoever gets hold of the key cannot make another that outlives it."""
    status, text = _call(running[0], service, form)
    assert (status, "AccessDenied" in text) == (403, True), text


def _call(store: EmbeddedObjectStore, service: str, form: str) -> tuple[int, str]:
    """A signed POST (AWS Signature Version 4) to the one address that S3, IAM and STS share."""
    access = store.access()
    host = store.endpoint.removeprefix("http://")
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{access.region}/{service}/aws4_request"
    digest = hashlib.sha256(form.encode()).hexdigest()
    kind = "application/x-www-form-urlencoded; charset=utf-8"
    names = "content-type;host;x-amz-content-sha256;x-amz-date"
    headers = f"content-type:{kind}\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{moment}\n"
    canonical = f"POST\n/\n\n{headers}\n{names}\n{digest}"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{access.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    credential = f"Credential={access.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    connection = http.client.HTTPConnection(host, timeout=10)
    sent = {
        "Content-Type": kind,
        "X-Amz-Date": moment,
        "X-Amz-Content-Sha256": digest,
        "Authorization": f"AWS4-HMAC-SHA256 {credential}",
    }
    connection.request("POST", "/", form, sent)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
