"""A function that attacks the platform that runs it, and publishes what came of each attempt.

`config` has what an attacker would have to guess: the addresses of services, the runner's process id, the path of a
secret, another dataset's files. With `take_memory: true` it takes memory until somebody stops it.
"""

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tracelake.sdk import FunctionTask, handler

SECONDS = 3.0
INTERNET = "1.1.1.1:443"
MOST_PROCESSES = 2000
SECRET_NAME = re.compile(r"SECRET|PASSW|DSN|KEY|TOKEN|CREDENTIAL", re.IGNORECASE)
OWN_TOKEN = "TRACE_TASK_CAPABILITY_TOKEN"  # noqa: S105 - a name


class Refused(Exception):  # noqa: N818 - an outcome
    """The attempt got nothing, and no error of the system says why."""


def read(path: str) -> str:
    return f"read {len(Path(path).read_bytes())} bytes"


def write_own_code() -> str:
    with Path(__file__).open("a") as file:
        return f"wrote {file.write('# changed')} bytes"


def find_secrets() -> str:
    names = [name for name in os.environ if SECRET_NAME.search(name) and name != OWN_TOKEN]
    if not names:
        raise Refused("no variable but those of its own task")
    return f"found {', '.join(names)}"


def kill(process: int) -> str:
    os.kill(process, signal.SIGKILL)
    return "killed it"


def connect(address: str) -> str:
    """A host and a port, or the path of a socket."""
    is_path = address.startswith("/")
    with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as connection:
        connection.settimeout(SECONDS)
        host, _, port = address.rpartition(":")
        connection.connect(address if is_path else (host, int(port)))
    return "connected"


def ask_proxy(method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
    """The only address that the sandbox has forwards what is the task's own."""
    connection = http.client.HTTPConnection(urlsplit(os.environ["TRACE_TASK_URL"]).netloc, timeout=30)
    headers = {"content-type": "application/json", "x-trace-task-capability": os.environ[OWN_TOKEN]}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    text = reply.read()
    if reply.status >= 300:
        raise Refused(f"{reply.status} {find_code(text)}")
    return f"answered with {len(text)} bytes"


def find_code(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "without a reason"


def fork_without_end() -> str:
    children: list[int] = []
    try:
        while len(children) < MOST_PROCESSES:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
        return f"started {len(children)} processes"
    except OSError as error:
        raise Refused(f"{explain(error)}, after {len(children)} processes") from None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def take_memory() -> None:
    pieces = []
    while True:
        pieces.append(b"x" * 2**20)


def explain(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


def list_attempts(task: FunctionTask) -> list[tuple[str, Callable[[], str]]]:
    config = task.config
    bucket, _, prefix = config["files"].removeprefix("s3://").partition("/")
    foreign_task = {"task_id": "00000000-0000-7000-8000-000000000000", "attempt": 1, "lease_token": task.task_id}
    return [
        ("read the machine's accounts", lambda: read("/etc/passwd")),
        ("read a key of the platform", lambda: read(config["secret_file"])),
        ("read the runner's environment", lambda: read(f"/proc/{config['runner']}/environ")),
        ("find a secret in its own environment", find_secrets),
        ("change its own code", write_own_code),
        ("kill the runner", lambda: kill(config["runner"])),
        ("connect to the internet", lambda: connect(INTERNET)),
        ("connect to Postgres", lambda: connect(config["postgres"])),
        ("connect to the internal listener", lambda: connect(config["internal"])),
        ("call the internal listener through its proxy", lambda: ask_proxy("POST", "/internal/task-claim", {})),
        ("complete another task", lambda: ask_proxy("POST", "/v1/task/complete", foreign_task)),
        ("list everyone's files", lambda: ask_proxy("GET", f"/{bucket}?list-type=2&prefix=datasets/")),
        ("list the files of another dataset", lambda: ask_proxy("GET", f"/{bucket}?list-type=2&prefix={prefix}")),
        ("get keys for the files of another dataset", lambda: str(len(task.get(f"{config['files']}part-0.parquet")))),
        ("query another dataset", lambda: str(task.query("SELECT count(*) FROM transfers"))),
        ("start processes without end", fork_without_end),
    ]


def attempt(attack: Callable[[], str]) -> tuple[bool, str]:
    """Whether it was refused, and what came of it."""
    try:
        return False, attack()
    except OSError as error:
        return True, explain(error)
    except Exception as error:
        # Errors of the SDK have the platform's code before their text.
        return True, str(error).partition(":")[0]


@handler
def handle(task: FunctionTask) -> None:
    if task.config.get("take_memory"):
        take_memory()
    rows = []
    for number, (tried, attack) in enumerate(list_attempts(task), start=1):
        refused, result = attempt(attack)
        rows.append({"number": number, "tried": tried, "refused": refused, "result": result})
    task.publish(rows, key="number")
