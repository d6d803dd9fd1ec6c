"""After a leak: what was given up is refused by a running Dispatcher, and honest work goes on."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from click.testing import CliRunner

from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import wait_until
from tracelake.adapters.keyring import PemKeyring
from tracelake.adapters.shared_secrets import SharedSecret, utc_now
from tracelake.cli.keys import command as keys


def test_tokens_of_a_leaked_key_are_refused_and_workers_get_new_ones(harness: DispatcherHarness) -> None:
    task_id = harness.make_task(harness.make_job()["job_id"])
    claim = harness.claim(task_id).body
    body = fence(task_id, claim)
    assert harness.task("heartbeat", claim["capability_token"], body).status == 200
    PemKeyring(harness.home / "keys/task").replace(utc_now())
    wait_until(
        lambda: harness.task("heartbeat", claim["capability_token"], body).status == 401, "the old token to be refused"
    )
    assert harness.task("heartbeat", claim["capability_token"], body).code == "credential_unknown_key"
    fresh = harness.worker("POST", "/internal/task-token", body).body["capability_token"]
    assert harness.task("complete", fresh, body | {"status": "Completed"}).body == {"status": "Completed"}
    assert len(harness.call("task", "GET", "/internal/jwks/task").body["keys"]) == 1


def test_a_leaked_worker_token_is_refused_though_nobody_used_the_new_one(harness: DispatcherHarness) -> None:
    old = harness.worker_token

    def claim_with(token: str) -> int:
        body = {"task_id": "019a0000-0000-7000-8000-000000000009", "worker_id": "w"}
        return harness.call("internal", "POST", "/internal/task-claim", body, {"x-trace-worker-token": token}).status

    assert claim_with(old) == 200
    SharedSecret(harness.home / "keys", "worker").rotate(utc_now() - timedelta(seconds=1), overlap_seconds=0)
    wait_until(lambda: claim_with(old) == 401, "the old worker token to be refused")
    assert claim_with(harness.worker_token) == 200


def test_a_ring_serves_a_retired_key_as_long_as_its_longest_token_lives(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ring = PemKeyring.ensure(tmp_path, start, longest_token=timedelta(days=30))
    first = ring.current_kid(start)
    ring.rotate(start, lead_seconds=0)
    assert first in {key.kid for key in ring.public_keys(start + timedelta(days=29))}
    assert first not in {key.kid for key in ring.public_keys(start + timedelta(days=30, seconds=2))}


def test_looking_at_keys_makes_none(tmp_path: Path) -> None:
    result = CliRunner().invoke(keys, ["list", "--home", str(tmp_path / "nothing")])
    assert "holds no keys yet" in str(result.exception)
    assert not (tmp_path / "nothing").exists()


def test_the_command_gives_up_a_leaked_key_and_reissues_the_admin_token(tmp_path: Path) -> None:
    home = tmp_path / "home"
    old = PemKeyring.ensure(home / "keys/user", utc_now()).current_kid(utc_now())
    result = CliRunner().invoke(keys, ["rotate", "user", "--leaked", "--home", str(home)])
    assert result.exit_code == 0, result.output
    assert "issued anew" in result.output
    assert (home / "keys/admin.jwt").stat().st_mode & 0o777 == 0o600
    assert old not in {key.kid for key in PemKeyring(home / "keys/user").public_keys(utc_now())}
