"""docs/runbooks/key-rotation.md: every kind, planned and leaked, while a source and its tasks go on."""

from pathlib import Path

from tests.runbooks.page import follow
from tests.runbooks.test_dead_source import deliver
from tests.support.real_stack import RealStack

DAG = """\
name: keyed
jobs:
  - name: clock
    activation: source
    source: { kind: always_on }
    runtime: ecs_platform
    operator: ticker
    config: { seconds: 0.2 }
    heartbeat_timeout_seconds: 60
  - name: prices
    activation: source
    source: { kind: webhook, webhook_path: keyed/prices }
  - name: work
    activation: reactive
    runtime: ecs_platform
    operator: noop
    inputs: [{ from: { job: clock } }]
"""


def test_the_page(shared_stack: RealStack) -> None:
    stack = shared_stack
    stack.deploy("keyed", DAG)

    def whoami(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return stack.call(stack.stack.public_url, "/v1/whoami", None, headers, method="GET")[0]

    def claims(token: str) -> int:
        body = {"task_id": "01890000-0000-7000-8000-000000000001", "worker_id": "x"}
        headers = {"X-Trace-Worker-Token": token}
        return stack.call(stack.stack.internal_url, "/internal/task-claim", body, headers)[0]

    def serves(token: str) -> int:
        headers = {"X-Trace-Service-Token": token}
        return stack.call(stack.stack.internal_url, "/internal/outbox?limit=1", None, headers, method="GET")[0]

    def progress() -> tuple[int, int]:
        (run,) = stack.sql(
            "SELECT attempt FROM tasks JOIN jobs USING (job_id) WHERE dag_name = 'keyed' AND name = 'clock'"
        )
        done = "SELECT FROM tasks JOIN jobs USING (job_id) WHERE dag_name = 'keyed' AND status = 'Completed'"
        return run["attempt"], len(stack.sql(done))

    def tokens() -> dict[str, str]:
        files = {
            "user": stack.stack.admin_token_file,
            "worker": stack.stack.worker_token_file,
            "service": stack.stack.service_token_file,
        }
        return {name: Path(file).read_text().strip() for name, file in files.items()}

    stack.wait_until(lambda: len(stack.sql("SELECT FROM jobs WHERE dag_name = 'keyed'")) == 3, "the deploy")
    stack.wait_until(lambda: progress() >= (1, 2), "the source and its tasks to run")
    hook = stack.trace("webhook keyed/prices")
    secrets: list[str] = [hook["secret"]]
    words = {"DAG": "keyed", "WEBHOOK": "prices", "NAME": "ann", "FILE": "ann.token"}

    webhook = {name: words[name] for name in ("DAG", "WEBHOOK")}
    follow(stack, "key-rotation.md", section="Planned", words=webhook)
    secrets.append(stack.trace("webhook keyed/prices")["secret"])
    assert len(set(secrets)) == 2
    assert [deliver(stack, hook["path"], secret, f"planned-{n}") for n, secret in enumerate(secrets)] == [200, 200]
    before = tokens()
    assert (whoami(before["user"]), claims(before["worker"]), serves(before["service"])) == (200, 200, 200)

    follow(stack, "key-rotation.md", section="Leaked", words=words)
    now = tokens()
    stack.wait_until(lambda: whoami(before["user"]) == 401, "the old user token to be refused")
    stack.wait_until(lambda: claims(before["worker"]) == 401, "the old worker token to be refused")
    stack.wait_until(lambda: serves(before["service"]) == 401, "the old service token to be refused")
    assert (whoami(now["user"]), claims(now["worker"]), serves(now["service"])) == (200, 200, 200)
    assert whoami((stack.files / "ann.token").read_text().strip()) == 200
    last = stack.trace("webhook keyed/prices")["secret"]
    assert [deliver(stack, hook["path"], secret, f"leaked-{n}") for n, secret in enumerate(secrets)] == [401, 401]
    assert deliver(stack, hook["path"], last, "leaked-last") == 200

    follow(stack, "key-rotation.md", section="Verify")
    attempt, done = progress()
    stack.wait_until(lambda: progress()[1] >= done + 3, "work to go on with the new tokens")
    assert progress()[0] == attempt == 1, "the source was never interrupted"
    stack.shell("trace pause keyed/clock")
