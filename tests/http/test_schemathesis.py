"""A property-based fuzzer over the generated OpenAPI, against the real Dispatcher over TLS.

Nothing gives a 5xx, every answer is what the document says, every error code is in the catalogue.
"""

import logging
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok
from tools.openapi import build_openapi

from tests.http.support import CAPABILITY, SERVICE, WORKER, Claimed, check_leaks, claimed, user_token
from tests.support.dags import deploy, job_id
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import CATALOGUE, TraceError
from tracelake.wire.contract import DISPATCHER_LISTENERS, Listener
from tracelake.wire.routes import BATCH_TASK_CALLS, ROUTES
from tracelake.wire.webhooks import signature_header

CONFORMANCE = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture
def task(harness: DispatcherHarness) -> Claimed:
    return claimed(harness)


def operations(listener: Listener) -> list[Any]:
    """Of the document without its credentials: the fuzzer would spend itself on leaving them out."""
    document = build_openapi(listener, ROUTES)
    for path in document["paths"].values():
        for operation in path.values():
            del operation["security"]
    schema = schemathesis.openapi.from_dict(document)
    found = []
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        found.append(result.ok())
    return found


OPERATIONS = [
    pytest.param(listener, operation, id=operation.label)
    for listener in DISPATCHER_LISTENERS
    for operation in operations(listener)
]


def credentials(task: Claimed) -> dict[str, str]:
    harness = task.harness
    return {
        CAPABILITY: task.token,
        WORKER: harness.worker_token,
        SERVICE: harness.service_token,
        "authorization": f"Bearer {user_token(harness)}",
    }


def real_names(task: Claimed) -> list[tuple[str, Any]]:
    """What a caller knows: with these in place, generated bodies get past the fence and into the tables."""
    return [
        ("task_id", task.task_id),
        ("attempt", 1),
        ("lease_token", task.lease["lease_token"]),
        ("job_id", task.job["job_id"]),
        ("runtime", "lambda"),  # whose operators and configs are anybody's
        ("capability_token", task.token),
        ("dataset_uuid", task.output("none")["dataset_uuid"]),
        ("dataset_version", task.output("none")["dataset_version"]),
    ]


DAG = """\
name: fuzzed
jobs:
  - name: start
    activation: source
    source: { kind: manual }
  - name: hook
    activation: source
    source: { kind: webhook, webhook_path: fuzzed/hook }
  - { name: work, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{ from: { job: start } }] }
"""


def names_of_people(task: Claimed, *, hooked: bool) -> list[tuple[str, Any]]:
    """The same for a user: a DAG of the user's own org, with a task."""
    deploy(task.harness, DAG)
    job = job_id(task.harness, "fuzzed", "work")
    tasks = task.harness.sql("SELECT task_id FROM tasks WHERE job_id = $1 ORDER BY task_id LIMIT 1", job)
    task_id = str(tasks[0]["task_id"]) if tasks else task.harness.make_task(str(job))
    return [
        ("dag", "fuzzed"), ("job", "hook" if hooked else "start"), ("name", "fuzzed__work_0"), ("number", 1),
        ("task_id", task_id), ("path", "fuzzed/hook"), ("delivery_id", "1"),
    ]  # fmt: skip


def name_removable_dag(task: Claimed) -> str:
    """A DAG that may go: what is removed or purged is not there for the routes that come after."""
    with suppress(TraceError):  # an earlier example removed it
        deploy(task.harness, DAG.replace("fuzzed", "discarded"))
    return "discarded"


class Signed(requests.auth.AuthBase):
    """What the fuzzer made of a delivery, with a good signature."""

    def __init__(self, task: Claimed) -> None:
        org_id = task.harness.sql("SELECT org_id FROM webhooks WHERE path = 'fuzzed/hook'")[0]["org_id"]
        self._secret = task.harness.credentials.webhooks.secret(org_id, "fuzzed", "hook", 1)
        self._now = int(task.harness.sql("SELECT trace_now() AS now")[0]["now"].timestamp())

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        assert isinstance(body, str | bytes)
        data = body.encode() if isinstance(body, str) else body
        # Two bodies under one id are refused, and that is to be seen too.
        delivery = f"d{len(data) % 5}"
        request.headers["x-trace-delivery"] = delivery
        request.headers["x-trace-signature"] = signature_header([self._secret], self._now, delivery, data)
        return request


def with_real_names(value: Any, names: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: names.get(key, with_real_names(item, names)) for key, item in value.items()}
    return [with_real_names(item, names) for item in value] if isinstance(value, list) else value


def fuzz(task: Claimed, listener: Listener, operation: Any, headers: dict[str, str], examples: int) -> set[int]:
    client = task.harness.clients[listener.value]
    base = f"https://{client._host}:{client._port}"
    cases = st.one_of(operation.as_strategy(GenerationMode.POSITIVE), operation.as_strategy(GenerationMode.NEGATIVE))
    public = listener is Listener.PUBLIC
    names = dict(names_of_people(task, hooked="webhook" in operation.path) if public else real_names(task))
    if operation.path.endswith(("/remove", "/restore", "/purge")):
        names["dag"] = name_removable_dag(task)
    signed = Signed(task) if public and headers and operation.path.startswith("/v1/webhooks/") else None
    statuses: set[int] = set()
    with requests.Session() as session:
        session.trust_env = False

        @seed(0)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, known=st.booleans())
        def check(case: Any, known: bool) -> None:
            if known:
                case.body = with_real_names(case.body, names)
                case.query = with_real_names(case.query, names)
                case.path_parameters = with_real_names(case.path_parameters, names)
            response = case.call(
                base_url=base, session=session, headers=headers, verify=str(task.harness.tls.ca), auth=signed
            )
            statuses.add(response.status_code)
            # The router answers before any operation does; its words are in no operation's list.
            if response.status_code not in (404, 405) or response.json()["error"]["code"] not in (
                "route_not_found",
                "method_not_allowed",
            ):
                case.validate_response(response, checks=CONFORMANCE)
            if response.status_code >= 400 and operation.label not in ("GET /readyz", "GET /healthz"):
                error = response.json()["error"]
                assert CATALOGUE[error["code"]].status == response.status_code
                assert response.status_code < 500
                check_leaks({"code": error["code"], "details": sorted(error["details"])})

        check()
    return statuses


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("urllib3").setLevel(logging.WARNING)


@pytest.mark.parametrize(("listener", "operation"), OPERATIONS)
def test_with_good_credentials(task: Claimed, listener: Listener, operation: Any) -> None:
    examples = 40 if operation.body else 8
    statuses = fuzz(task, listener, operation, credentials(task), examples)
    # A webhook's credential is a signature of the body, which nothing here can make.
    assert (401 in statuses) is ("/webhooks/" in operation.path)
    if operation.body and "/webhooks/" not in operation.path:
        assert len(statuses) > 1, "accepted and refused, or it was no fuzzing"


@pytest.mark.parametrize(("listener", "operation"), OPERATIONS)
def test_with_no_credentials(task: Claimed, listener: Listener, operation: Any) -> None:
    statuses = fuzz(task, listener, operation, {}, 5)
    document = build_openapi(listener, ROUTES)
    if document["paths"][operation.path][operation.method]["security"]:
        assert 401 in statuses
        assert statuses <= {401, 404, 405}, "refused at the door, or no such path"
    else:
        large_only = operation.path == BATCH_TASK_CALLS.path  # a large batch needs a token in its header, too
        assert 401 not in statuses or large_only
