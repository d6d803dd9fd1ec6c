"""What the process of an org can have the worker do: what its attempt was granted, and nothing else."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tracelake.catalogue.context import Batch, NonRetryableError
from tracelake.errors import BoundaryMovedError
from tracelake.spark.child.messages import (
    Accepted,
    AnswerBody,
    AskBody,
    AskDownload,
    AskExport,
    AskFiles,
    AskPublish,
    AskRows,
    AskTable,
    AskUpload,
    AskUrls,
    AttemptFailure,
    FailureAnswer,
    FilesAnswer,
    ObjectAnswer,
    UrlsAnswer,
)
from tracelake.spark.child.transfer import check
from tracelake.spark.testing import BUCKET, DirectoryTransfer, Trial, make_unit
from tracelake.worker.org_process.broker import AttemptBroker
from tracelake.worker.org_process.process import _as_error

UNIT = make_unit((0, 9))


class Desk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.trial = Trial(Mock(spec=SparkSession), root)
        self.trial.add_input("transfers", pa.table({"block_number": [1, 2]}))
        self.trial.add_output("counts")
        context = self.trial.work("noop", {}, UNIT, 1, {}).context
        self.prefix = context.outputs[0].storage.write_prefix or ""
        self.broker = AttemptBroker(
            context, self.trial.transfer, lambda: "", root / "transit", (root / "file").parent.stat().st_dev
        )

    def ask(self, body: AskBody, descriptor: int | None = None) -> AnswerBody:
        return self.broker.answer(body, descriptor)

    def refused(self, body: AskBody, descriptor: int | None = None) -> bool:
        answer = self.ask(body, descriptor)
        return isinstance(answer, FailureAnswer) and answer.kind == "NonRetryableError"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_only_files_that_the_dispatcher_named_are_fetched(desk: Desk, tmp_path: Path) -> None:
    meta = desk.trial.inputs[0][1][0]
    with (tmp_path / "copy").open("wb") as file:
        assert desk.refused(AskDownload(meta.uri, meta.etag), file.fileno()), "nothing was named yet"
        answer = desk.ask(AskFiles(0, UNIT))
        assert answer == FilesAnswer([meta])
        assert desk.refused(AskDownload(meta.uri, "another"), file.fileno())
        assert desk.refused(AskDownload(f"{BUCKET}foreign/1.parquet", meta.etag), file.fileno())
        assert desk.refused(AskFiles(1, UNIT))
        assert desk.ask(AskDownload(meta.uri, meta.etag), file.fileno()) == Accepted()
    assert (tmp_path / "copy").read_bytes() == desk.trial.transfer.path(meta.uri).read_bytes()


def test_only_new_objects_below_the_prefix_of_the_attempt_are_stored(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"rows")
    with path.open("rb") as file:
        for uri in (
            f"{BUCKET}foreign/1.parquet",
            desk.prefix.replace("/1/", "/2/") + "1.parquet",
            f"{desk.prefix}deeper/1.parquet",
            f"{desk.prefix}../1.parquet",
            desk.prefix,
        ):
            assert desk.refused(AskUpload(uri), file.fileno()), uri
        answer = desk.ask(AskUpload(f"{desk.prefix}1.parquet"), file.fileno())
        assert isinstance(answer, ObjectAnswer)
        path.write_bytes(b"other rows")
        again = desk.ask(AskUpload(f"{desk.prefix}1.parquet"), file.fileno())
    assert isinstance(again, FailureAnswer)
    assert again.kind == "ObjectExistsError"
    assert desk.trial.transfer.path(f"{desk.prefix}1.parquet").read_bytes() == b"rows"
    with (tmp_path / "copy").open("wb") as file:
        assert desk.ask(AskDownload(answer.meta.uri, answer.meta.etag), file.fileno()) == Accepted(), "it is its own"


def test_only_open_files_of_its_own_file_system_are_taken(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"rows")
    reading, writing = os.pipe()
    descriptors = {
        "a name": os.open(path, os.O_PATH),
        "for writing alone": os.open(path, os.O_WRONLY),
        "a directory": os.open(tmp_path, os.O_RDONLY),
        "a pipe": reading,
        "another file system": os.open("/proc/self/status", os.O_RDONLY),
    }
    try:
        for what, descriptor in descriptors.items():
            assert desk.refused(AskUpload(f"{desk.prefix}1.parquet"), descriptor), what
        assert desk.refused(AskUpload(f"{desk.prefix}1.parquet"))
        meta = desk.trial.inputs[0][1][0]
        desk.ask(AskFiles(0, UNIT))
        with path.open("rb") as file:
            assert desk.refused(AskDownload(meta.uri, meta.etag), file.fileno()), "opened for reading"
    finally:
        for descriptor in (*descriptors.values(), writing):
            os.close(descriptor)


def test_tables_and_batches_are_those_of_the_attempt(desk: Desk) -> None:
    assert desk.refused(AskTable(0)), "the input is not a table"
    assert desk.refused(AskRows(0, 0))
    assert desk.refused(AskPublish(0, f"{desk.prefix}1.jsonl", 1)), "nothing was written there"
    assert desk.refused(AskPublish(7, f"{desk.prefix}1.jsonl", 1))


class SigningTransfer(DirectoryTransfer):
    def sign(self, uris: Sequence[str], *, create: bool, seconds: int) -> list[str]:
        return [f"{create}:{uri}" for uri in uris]


def test_addresses_for_executors_are_those_of_the_attempt_alone(desk: Desk, tmp_path: Path) -> None:
    meta = desk.trial.inputs[0][1][0]
    new = f"{desk.prefix}1.parquet"
    asked = AskUrls([(meta.uri, meta.etag)], [new])
    desk.ask(AskFiles(0, UNIT))
    desk.broker._transfer = SigningTransfer(tmp_path / "objects")
    assert desk.refused(asked), "it does not run on a cluster"
    desk.broker._scratch_prefix = "s3://trace-scratch/scratch/1/1/"
    assert desk.ask(asked) == UrlsAnswer([f"False:{meta.uri}"], [f"True:{new}"])
    foreign = f"{BUCKET}foreign/1.parquet"
    for reading, creating in (
        ([(foreign, meta.etag)], []),
        ([(meta.uri, "another")], []),
        ([], [foreign]),
        ([], [f"{desk.prefix}deeper/1.parquet"]),
        ([], [f"{desk.prefix}../1.parquet"]),
        ([], ["s3://trace-scratch/scratch/1/1/x.parquet"]),
        ([], [f"{desk.prefix}{number}.parquet" for number in range(50_001)]),
    ):
        assert desk.refused(AskUrls(reading, creating)), (reading[:1], creating[:1])
    assert desk.refused(AskExport(0, 0)), "no table was cut"
    desk.broker.close()
    assert desk.refused(AskUrls([], [f"{desk.prefix}2.parquet"])), "the attempt has ended"


def test_a_batch_that_an_executor_stored_is_published_with_its_hash(desk: Desk, tmp_path: Path) -> None:
    batches: list[Batch] = []
    desk.broker._context = dataclasses.replace(desk.broker._context, publish=batches.append)
    desk.broker._transfer = SigningTransfer(tmp_path / "objects")
    desk.broker._scratch_prefix = "s3://trace-scratch/scratch/1/1/"
    uri = f"{desk.prefix}1.jsonl"
    assert desk.refused(AskPublish(0, uri, 1, "0" * 64)), "its name was never lent"
    desk.ask(AskUrls([], [uri]))
    assert desk.ask(AskPublish(0, uri, 1, "0" * 64)) == Accepted()
    assert [(batch.uri, batch.sha256) for batch in batches] == [(uri, "0" * 64)]


def test_a_boundary_that_moved_stays_one_on_its_way(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the worker, which reads the table, to the process, and back as the outcome of the attempt."""

    def move(*_: object) -> AnswerBody:
        raise BoundaryMovedError("It moved.")

    monkeypatch.setattr(AttemptBroker, "_cut", move)
    answer = desk.ask(AskTable(0))
    with pytest.raises(BoundaryMovedError) as raised:
        check(answer)
    outcome = _as_error(AttemptFailure(type(raised.value).__name__, str(raised.value)))
    assert isinstance(outcome, BoundaryMovedError)
    assert str(outcome) == "boundary_moved: It moved."


def test_a_final_failure_without_a_kind_of_its_own_has_no_class_name_in_its_error() -> None:
    """The wrapper leaves out the name of exactly this class."""
    outcome = _as_error(AttemptFailure("NonRetryableError", "two rows have the same day", final=True))
    assert type(outcome) is NonRetryableError
    named = _as_error(AttemptFailure("OverflowError", "too large", final=True))
    assert isinstance(named, NonRetryableError)
    assert type(named).__name__ == "OverflowError"
