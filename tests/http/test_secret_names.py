"""What the Dispatcher says about secrets: their names and their org, to the worker that claims, and to nobody else."""

import base64
from typing import Any

import msgspec

from tests.http.support import fresh
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.claims import Invocation
from tracelake.wire.units import TaskPayload

DAG = """
name: keys
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: with, activation: reactive, operator: noop, inputs: [{from: {job: src}}], secrets: [ZWEI, EINS]}
  - {name: without, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
"""


def test_names_go_to_whoever_claims(harness: DispatcherHarness) -> None:
    for org in (fresh(), fresh()):
        flow = Flow(harness, org)
        flow.deploy(DAG)
        flow.trigger("keys", "src", cursor=1)
        task_id = str(flow.tasks("with")[0]["task_id"])
        claimed: Any = harness.claim(task_id, claim_id="one").body
        assert claimed["secrets"] == {"org": org, "names": ["EINS", "ZWEI"]}
        assert harness.claim(task_id, claim_id="one").body["secrets"] == claimed["secrets"], "a lost answer"
        assert "secrets" not in harness.claim(str(flow.tasks("without")[0]["task_id"])).body

        assert "EINS" not in str(claimed["task"])
        fetched = harness.worker("GET", f"/internal/task-fetch?task_id={task_id}").body
        assert "EINS" not in str(fetched)
        claims = claimed["capability_token"].split(".")[1]
        assert b"EINS" not in base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))


def test_neither_a_payload_nor_an_invocation_has_a_place_for_them() -> None:
    for kind in (TaskPayload, Invocation):
        assert not [field.name for field in msgspec.structs.fields(kind) if "secret" in field.name]
