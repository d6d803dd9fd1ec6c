"""The DAG language: reads YAML text into a `model.dag.Dag`, or reports every problem with its position."""

from tracelake.dag.canonical import canonical, canonical_hash, document_hash
from tracelake.dag.json_schema import json_schema
from tracelake.dag.places import located
from tracelake.dag.problems import DagInvalidError
from tracelake.dag.reader import TypedDag, read_dag, read_typed_dag
from tracelake.dag.schedule import Schedule, ScheduleError, parse_schedule
from tracelake.dag.surroundings import KnownBundle, KnownDataset, Surroundings, kept_as

__all__ = [
    "DagInvalidError",
    "KnownBundle",
    "KnownDataset",
    "Schedule",
    "ScheduleError",
    "Surroundings",
    "TypedDag",
    "canonical",
    "canonical_hash",
    "document_hash",
    "json_schema",
    "kept_as",
    "located",
    "parse_schedule",
    "read_dag",
    "read_typed_dag",
]
