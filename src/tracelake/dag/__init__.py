"""The DAG language: from YAML text to a `model.dag.Dag`, or to every problem with its place."""

from tracelake.dag.canonical import canonical, document_hash
from tracelake.dag.json_schema import json_schema
from tracelake.dag.problems import DagInvalidError
from tracelake.dag.reader import read_dag
from tracelake.dag.schedule import Schedule, ScheduleError, parse_schedule
from tracelake.dag.surroundings import KnownDataset, Surroundings

__all__ = [
    "DagInvalidError",
    "KnownDataset",
    "Schedule",
    "ScheduleError",
    "Surroundings",
    "canonical",
    "document_hash",
    "json_schema",
    "parse_schedule",
    "read_dag",
]
