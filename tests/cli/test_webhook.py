"""`trace webhook`: what people see, what programs get, and an example that a shell can run."""

import json
import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.cli.webhook import example
from tracelake.errors import TraceError
from tracelake.wire.webhooks import WebhookReply, sign

WHERE = "/v1/dags/pools/jobs/alerts/webhook"
SECRET = "-x_Secret"


def reply(rotation: int = 1, secret: str = SECRET) -> WebhookReply:
    return WebhookReply(
        path="pools/alerts-1",
        secret=secret,
        rotation=rotation,
        signature_header="x-trace-signature",
        delivery_header="x-trace-delivery",
        previous_until=None if rotation == 1 else datetime(2026, 1, 31, 12, tzinfo=UTC),
    )


def test_what_people_see(api: FakeApi, trace: Trace) -> None:
    api.answers[f"GET {WHERE}"] = reply()
    shown = trace("webhook", "pools/alerts", columns=60)
    assert shown.status == 0, shown
    url = json.loads((api.home / "stack.json").read_bytes())["public_url"] + "/v1/webhooks/pools/alerts-1"
    for text in ("pools/alerts", url, SECRET, "openssl dgst -sha256 -hmac", "curl --cacert"):
        assert text in shown.out
    assert "old secret" not in shown.out
    assert [call.method for call in api.calls] == ["GET"]


def test_a_stack_that_the_cas_of_the_machine_verify_needs_no_file() -> None:
    assert "curl --cacert /ca.pem --header" in example("https://x", "/ca.pem", reply())[-1]
    assert "curl --header" in example("https://x", "", reply())[-1]


def test_rotating_names_the_rotation_that_was_seen(api: FakeApi, trace: Trace) -> None:
    api.answers[f"GET {WHERE}"] = reply()
    api.answers[f"POST {WHERE}/rotate"] = reply(2, "new")
    shown = trace("webhook", "pools/alerts", "--rotate")
    assert shown.status == 0, shown
    assert "old secret valid until" in shown.out
    assert SECRET not in shown.out
    (rotated,) = api.asked(f"{WHERE}/rotate")
    assert rotated.query == {"after": "1"}


def test_a_job_that_is_no_webhook_is_said(api: FakeApi, trace: Trace) -> None:
    api.answers[f"GET {WHERE}"] = TraceError("webhook_not_found")
    shown = trace("webhook", "pools/alerts")
    assert shown.status == 1
    assert "pools/alerts is not a webhook source of an active version; `trace sources` lists" in shown.err
    assert "Check the path" not in shown.err


def test_json_is_the_answer_and_where_to_send(api: FakeApi, trace: Trace) -> None:
    api.answers[f"GET {WHERE}"] = reply()
    stack = json.loads((api.home / "stack.json").read_bytes())
    shown = trace("webhook", "pools/alerts", "--json")
    assert json.loads(shown.out) == {
        "path": "pools/alerts-1",
        "secret": SECRET,
        "rotation": 1,
        "signature_header": "x-trace-signature",
        "delivery_header": "x-trace-delivery",
        "url": f"{stack['public_url']}/v1/webhooks/pools/alerts-1",
        "ca_file": stack["ca_file"],
    }


def test_the_address_is_that_for_other_machines(api: FakeApi, trace: Trace) -> None:
    """The command itself calls the address of this machine."""
    api.answers[f"GET {WHERE}"] = reply()
    file = api.home / "stack.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"shared_public_url": "https://lab.example:8443"}))
    url = "https://lab.example:8443/v1/webhooks/pools/alerts-1"
    assert json.loads(trace("webhook", "pools/alerts", "--json").out)["url"] == url
    shown = trace("webhook", "pools/alerts").out
    assert shown.count(url) == 2
    assert "127.0.0.1" not in shown


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it is an example for openssl")
@pytest.mark.parametrize("secret", [SECRET, "plain", "_-_"])
def test_the_example_signs_as_the_server_checks(secret: str) -> None:
    lines = example("https://localhost/v1/webhooks/a", "/ca file.pem", reply(secret=secret))
    script = "\n".join([*lines[:2], 'printf "%s\\n" "$t" "$id" "$body" "$signature"'])
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    time, delivery, body, signature = ran.stdout.splitlines()
    assert signature == sign(secret, int(time), delivery, body.encode())
    assert "'/ca file.pem'" in lines[2]
