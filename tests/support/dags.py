"""Deploying DAGs in tests, through the real deployment code, and finding what they made."""

from typing import Any
from uuid import UUID

import asyncpg
import yaml

from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.audit import Actor
from tracelake.wire.dags import ActivateRequest, DeployReply

ORG = "acme"


def actor(harness: DispatcherHarness, org: str = ORG, subject: str = "tester") -> Actor:
    rows = harness.sql("SELECT org_id FROM orgs WHERE name = $1", org)
    return Actor(subject=subject, org=org, org_id=rows[0]["org_id"] if rows else None)


def deploy(
    harness: DispatcherHarness, text: str, org: str = ORG, *, activate: bool = True, dry_run: bool = False
) -> DeployReply:
    """The DAG that the text names, deployed by `tester`."""
    name = yaml.safe_load(text)["name"]
    who = actor(harness, org)
    deployments = harness.dispatcher.deployments
    return harness.run(deployments.deploy(who, name, text.encode(), dry_run=dry_run, activate=activate))


def activate(
    harness: DispatcherHarness, dag: str, version: Any = "previous", *, now: bool = False, org: str = ORG
) -> DeployReply:
    request = ActivateRequest(version=version, now=now)
    return harness.run(harness.dispatcher.deployments.activate(actor(harness, org), dag, request))


def run_builds(harness: DispatcherHarness) -> int:
    """One round of the loop that ends finished builds."""
    return harness.run(harness.dispatcher.builds.run_once())


_JOB = """
    SELECT j.* FROM dags d JOIN orgs o USING (org_id)
    JOIN dag_version_jobs v ON v.dag_version_id = {version}
    JOIN jobs j ON j.job_id = v.job_id
    WHERE o.name = $1 AND d.dag_name = $2 AND j.name = $3"""


def job(harness: DispatcherHarness, dag: str, name: str, *, building: bool = False, org: str = ORG) -> asyncpg.Record:
    """The row of `jobs` that the active version has, or the one that is being built."""
    version = "d.building_version" if building else "coalesce(d.active_version, d.building_version)"
    return harness.sql(_JOB.format(version=version), org, dag, name)[0]


def job_id(harness: DispatcherHarness, dag: str, name: str, *, building: bool = False, org: str = ORG) -> UUID:
    found: UUID = job(harness, dag, name, building=building, org=org)["job_id"]
    return found


def output(
    harness: DispatcherHarness, dag: str, name: str, index: int = 0, *, building: bool = False, org: str = ORG
) -> tuple[UUID, UUID]:
    """`(dataset_uuid, dataset_version)` that the job writes."""
    row = harness.sql(
        "SELECT dataset_uuid, dataset_version FROM job_outputs WHERE job_id = $1 AND output_index = $2",
        job_id(harness, dag, name, building=building, org=org),
        index,
    )[0]
    return row["dataset_uuid"], row["dataset_version"]


def edge(
    harness: DispatcherHarness, dag: str, name: str, index: int = 0, *, building: bool = False, org: str = ORG
) -> asyncpg.Record:
    """The row of `edges` of the job's input."""
    node = job(harness, dag, name, building=building, org=org)["node_id"]
    return harness.sql("SELECT * FROM edges WHERE node_id = $1 AND input_index = $2", node, index)[0]
