"""The DAG language: from YAML text to a `model.dag.Dag`, or to every problem with its place."""

from typing import Any

from tracelake.dag.canonical import canonical, document_hash
from tracelake.dag.problems import DagInvalidError
from tracelake.dag.surroundings import KnownDataset, Surroundings
from tracelake.model.dag import Dag

__all__ = [
    "DagInvalidError",
    "KnownDataset",
    "Surroundings",
    "canonical",
    "document_hash",
    "json_schema",
    "read_dag",
]


def read_dag(text: bytes, surroundings: Surroundings) -> Dag:
    raise NotImplementedError


def json_schema() -> dict[str, Any]:
    raise NotImplementedError
