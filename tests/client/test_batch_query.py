"""Following a batch query and writing its result, against a service that a test plays."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.cli import batch_query as command
from tracelake.cli.session import Session
from tracelake.client.batch_query import await_query, save
from tracelake.client.query import QueryClient
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.wire.batch_query import BatchQueryReply, BatchState, QueryFailure
from tracelake.wire.query import CancelQueryReply, ResultDownload

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def reply(state: BatchState, **fields: Any) -> BatchQueryReply:
    return BatchQueryReply(
        query_id=UUID(int=1), state=state, progress=f"it is {state}", subject="ann", submitted_at=NOW, **fields
    )


class PlayedService:
    """Answers with these, one after another; an error is raised."""

    def __init__(self, *answers: BatchQueryReply | BaseException) -> None:
        self._answers: Iterator[BatchQueryReply | BaseException] = iter(answers)
        self.cancellations: list[UUID] = []

    async def show(self, _query_id: UUID) -> BatchQueryReply:
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def cancel(self, query_id: UUID) -> CancelQueryReply:
        self.cancellations.append(query_id)
        return CancelQueryReply(query_id=query_id, canceled=True)

    async def close(self) -> None:
        pass


def follow(*answers: BatchQueryReply | BaseException) -> tuple[list[str], BatchQueryReply]:
    states: list[str] = []
    client = cast(QueryClient, PlayedService(*answers))
    done = asyncio.run(await_query(client, UUID(int=1), 60, lambda query: states.append(query.state)))
    return states, done


def test_a_query_is_followed_to_its_end_through_an_outage() -> None:
    states, done = follow(reply("queued"), StoreUnavailableError(), reply("running"), reply("done", row_count=3))
    assert states == ["queued", "running", "done"]
    assert done.row_count == 3


def test_a_query_that_failed_raises_its_error() -> None:
    failure = QueryFailure(code="query_division_by_zero", message="no")
    with pytest.raises(TraceError) as error:
        follow(reply("failed", error=failure))
    assert (error.value.code, error.value.message) == ("query_division_by_zero", "no")


def test_files_of_a_result_become_one_file_or_none(tmp_path: Path) -> None:
    downloads = []
    for number in range(3):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number, number + 10]}), path, row_group_size=1)
        downloads.append(ResultDownload(url=path.as_uri(), expires_at=NOW, size_bytes=1))
    target = tmp_path / "result" / "all.parquet"
    target.parent.mkdir()
    save(downloads, target)
    assert pq.read_table(target).column("n").to_pylist() == [0, 10, 1, 11, 2, 12]
    save(downloads[1:2], target)
    assert pq.read_table(target).column("n").to_pylist() == [1, 11]
    missing = ResultDownload(url=(tmp_path / "gone").as_uri(), expires_at=NOW, size_bytes=1)
    with pytest.raises(OSError, match="gone"):
        save([downloads[0], missing], target)
    assert [path.name for path in target.parent.iterdir()] == ["all.parquet"]
    assert pq.read_table(target).column("n").to_pylist() == [1, 11], "what was there stays until all is there"


def test_ctrl_c_cancels_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    service = PlayedService(KeyboardInterrupt())
    monkeypatch.setattr(command, "QueryClient", lambda *_arguments: service)
    query_id = uuid4()
    session = cast(Session, SimpleNamespace(stack=None, token_file=None))
    with pytest.raises(click.exceptions.Exit) as left:
        command._wait(session, query_id)
    assert left.value.exit_code == 130
    assert service.cancellations == [query_id]
