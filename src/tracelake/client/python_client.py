"""A synchronous client for people and programs: `from tracelake import Client`.

    with Client() as client:
        client.read("transfers", columns=["token", "amount_f64"], range=(0, 999)).to_polars()
        client.query("SELECT token, count(*) AS transfers FROM transfers GROUP BY token").to_pandas()

It uses the public API and the Query Service, and nothing of the stack's machine but the addresses. docs/python.md shows
every method.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TypeVar, overload
from uuid import UUID, uuid4

import msgspec

from tracelake.client import batch_query
from tracelake.client.content import ApiContent, pin_content
from tracelake.client.credentials import Credential, FileCredential
from tracelake.client.dag_documents import dag_name, name_of_file
from tracelake.client.directory_export import ExportReport, export_directory
from tracelake.client.errors import ClientError, DispatcherUnavailableError
from tracelake.client.loop_thread import LoopThread
from tracelake.client.name_suggestions import suggest_names
from tracelake.client.paging import collect
from tracelake.client.pinned_rows import PinnedRows, SpooledParquet, SpooledRows
from tracelake.client.query import PlainValue, QueryClient, QueryResult, ResultSource, download, to_parameters
from tracelake.client.ranges import Blocks, read_units
from tracelake.client.result_rows import ResultRows
from tracelake.client.stack import NoStackError, Stack, find_stack
from tracelake.client.user import TOKEN_VARIABLE, TextCredential, UserClient
from tracelake.client.waiting import StartedWork, await_build, await_work
from tracelake.wire import routes
from tracelake.wire.content import MOST_HEAD, ContentRequest
from tracelake.wire.dags import DeployReply
from tracelake.wire.datasets import DatasetDetail, DatasetRow
from tracelake.wire.jobs import BlockRange, TriggerRequest
from tracelake.wire.query import ParameterValue, QueryMode, QueryRequest, ResultDownload
from tracelake.wire.tasks import TaskDetail, TaskRow, TaskStatusFilter
from tracelake.wire.trigger_progress import TriggerProgressReply
from tracelake.wire.why import WhyReply

T = TypeVar("T")


class Client:
    """A connection to a stack, for any number of threads.

    Without arguments it is the stack that the commands use: that of `home` or `context`, or as `find_stack` decides.
    `url` is the public address of another one, with `ca_file` for its certificates (the CAs of the machine without it);
    `query_url` is its Query Service, if that has another address than the stack says. The token is `token`, else that
    of `token_file`, else TRACE_TOKEN (not for a context), else that of the context or of this machine's stack.

    Every failure is a `TraceError`, with `code`, `message` and `details`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        query_url: str | None = None,
        home: str | os.PathLike[str] | None = None,
        context: str | None = None,
    ) -> None:
        if url is None and (ca_file is not None or query_url is not None):
            raise ValueError("ca_file and query_url go with url")
        if sum(place is not None for place in (url, home, context)) > 1:
            raise ValueError("give one of url, home and context")
        if token is not None and token_file is not None:
            raise ValueError("give token or token_file, not both")
        self._home = None if home is None else Path(home)
        self._context = context
        self._remote = None if url is None else _remote_stack(url, ca_file, query_url)
        self._credential = _credential(token, token_file, is_remote=url is not None)
        self._loop = LoopThread()
        self._user: UserClient | None = None
        self._query: QueryClient | None = None
        try:
            self._stack()  # says at once that no stack runs
        except BaseException:
            self._loop.close()
            raise

    def close(self) -> None:
        """Closes the connections; a second call does nothing. Rows that were read stay usable if nothing is to be
        downloaded for them."""
        if self._user is not None or self._query is not None:
            user, query, self._user, self._query = self._user, self._query, None, None

            async def close() -> None:
                for connection in (user, query):
                    if connection is not None:
                        await connection.close()

            self._loop.run(close())
        self._loop.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- rows

    def read(
        self,
        dataset: str,
        *,
        columns: Sequence[str] | None = None,
        range: Blocks | None = None,  # noqa: A002 - the word of the commands
        limit: int | None = None,
    ) -> ResultRows:
        """The rows of a dataset as they are now.

        `range` takes whole units that touch these blocks (of a live dataset's table, exactly the blocks), or windows of
        time by their dates, like `2026-03-01..2026-03-03`; a table has no ranges. `limit` takes the first rows, which
        are the newest ones of a table or a live dataset. For conditions on rows, use `query`.
        """
        if isinstance(columns, str):
            raise TypeError("columns is a list of names")
        if limit is not None and limit < 1:
            raise ValueError("limit is at least 1")
        content = self._content(dataset)
        start, end = content.find_ends(None if range is None else read_units(range))
        request = ContentRequest(start=start, end=end)
        names = None if columns is None else list(columns)
        # Of a table, no more than so many newest rows can be asked for; more are all of them.
        head = limit if limit is not None and limit <= MOST_HEAD else None
        return ResultRows(pin_content(content, request, names, head), limit)

    def query(
        self,
        sql: str,
        parameters: Mapping[str, PlainValue | ParameterValue] | None = None,
        *,
        limit: int | None = None,
        timeout_seconds: int | None = None,
        mode: QueryMode = "interactive",
    ) -> ResultRows:
        """Runs SQL over the datasets of the org and waits for the result. `$name` in the SQL is a parameter.

        The SQL is DuckDB's; with `mode="batch"` it is Spark's, for results and inputs of any size.
        """
        values = to_parameters(parameters or {})
        if mode == "batch":
            return ResultRows(self._run_batch(batch_query.batch_request(sql, values, limit)))
        request = QueryRequest(
            sql=sql,
            parameters=values,
            limit=limit,
            format="arrow",
            timeout_seconds=timeout_seconds,
            query_id=uuid4(),
        )
        return ResultRows(_pin_result(self._ask_query(lambda client: client.fetch(request))))

    def export(
        self,
        dataset: str,
        directory: str | os.PathLike[str],
        *,
        range: Blocks | None = None,  # noqa: A002 - the word of the commands
    ) -> ExportReport:
        """Writes the dataset as Parquet files in directories by unit, or brings such a directory up to date: only units
        that changed are fetched. docs/reading-files.md describes the directory."""
        content = self._content(dataset)
        start, end = content.find_ends(None if range is None else read_units(range))
        return export_directory(content, ContentRequest(start=start, end=end), Path(directory))

    # --- datasets and tasks

    def datasets(self) -> list[DatasetRow]:
        """The datasets of the org."""
        return self._call(lambda client: client.call(routes.LIST_DATASETS)).datasets

    def dataset(self, name: str) -> DatasetDetail:
        """A dataset with its columns, what it holds, its generations and its consumers."""
        return self._call(lambda client: client.call(routes.SHOW_DATASET, name=name), dataset=name)

    def tasks(
        self,
        *,
        dag: str | None = None,
        job: str | None = None,
        status: TaskStatusFilter | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[TaskRow]:
        """Tasks, newest first."""
        return self._call(
            lambda client: collect(
                client, routes.LIST_TASKS, "tasks", limit=limit, dag=dag, job=job, status=status, since=since
            )
        ).tasks

    def task(self, task_id: UUID | str) -> TaskDetail:
        """A task with its inputs, outputs and attempts."""
        return self._call(lambda client: client.call(routes.SHOW_TASK, task_id=UUID(str(task_id))))

    def why(self, subject: str | UUID) -> WhyReply:
        """Explains why a dataset is not up to date, or why a job (`dag/job`) or a task (its id) does not run."""
        if isinstance(subject, UUID):
            return self._call(lambda client: client.call(routes.EXPLAIN_TASK, task_id=subject))
        dag, slash, job = subject.partition("/")
        if slash:
            return self._call(lambda client: client.call(routes.EXPLAIN_JOB, dag=dag, job=job), dag=dag, job=job)
        return self._call(lambda client: client.call(routes.EXPLAIN_DATASET, name=subject), dataset=subject)

    # --- work

    def deploy(
        self,
        document: str | os.PathLike[str],
        *,
        plan: bool = False,
        activate: bool = True,
        wait: bool = True,
        timeout: float | None = None,
    ) -> DeployReply:
        """Deploys a DAG document: the path of a file, or YAML of more than one line.

        `plan=True` changes nothing, and returns what would change. With `wait` it returns when the version is active,
        and raises `build_failed` if that needs somebody to act. All mistakes of a document are in `details` of one
        error, `dag_invalid`.
        """
        source, stem = _read_document(document)
        name = dag_name(source) or name_of_file(stem)
        reply = self._call(lambda client: client.call(routes.DEPLOY, source, dag=name, dry_run=plan, activate=activate))
        return self.wait(reply, timeout=timeout) if wait else reply

    def trigger(
        self,
        job: str,
        *,
        range: Blocks | None = None,  # noqa: A002 - the word of the commands
        cursor: int | None = None,
        partition: str | None = None,
        input_index: int = 0,
        output_index: int = 0,
        key: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> StartedWork:
        """Emits an event of a source, or creates the task of one unit of another job (`dag/job`); if the job has
        windows, a task for each window.

        Exactly one of `range` (blocks, or windows of time like `2026-03-03`), `cursor` and `partition` names the unit:
        of the input `input_index` where each input has units of its own, of the output `output_index` of a source.
        The same `key` again is the same trigger. With `wait` it returns when everything that follows in the DAG is
        finished and in its tables, and raises `tasks_failed` if a task failed and has no retry left.
        """
        dag, _, name = job.partition("/")
        if not dag or not name:
            raise ValueError(f"expected a job as dag/job, received {job!r}")
        unit = None if range is None else read_units(range)
        request = TriggerRequest(
            cursor=cursor,
            range=unit if isinstance(unit, BlockRange) else None,
            window=unit if isinstance(unit, str) else None,
            partition_key=partition,
            input_index=input_index,
            output_index=output_index,
            idempotency_key=key,
        )
        reply = self._call(lambda client: client.call(routes.TRIGGER, request, dag=dag, job=name), dag=dag, job=name)
        work = StartedWork(dag, name, reply)
        if wait:
            self.wait(work, timeout=timeout)
        return work

    @overload
    def wait(self, work: DeployReply, *, timeout: float | None = None) -> DeployReply: ...
    @overload
    def wait(self, work: StartedWork, *, timeout: float | None = None) -> TriggerProgressReply: ...
    def wait(
        self, work: DeployReply | StartedWork, *, timeout: float | None = None
    ) -> DeployReply | TriggerProgressReply:
        """Waits for what `trigger` or `deploy` has started. After `timeout` seconds it raises `wait_timeout`, which is
        a `TimeoutError` too; the work goes on."""
        if isinstance(work, StartedWork):
            return self._call(lambda client: await_work(client, work, timeout))
        if work.state != "Building":
            return work
        self._call(lambda client: await_build(client, work, timeout))
        return msgspec.structs.replace(work, state="Active")

    # --- calls

    def _call(self, work: Callable[[UserClient], Awaitable[T]], /, **names: str) -> T:
        """Runs the work; an error about one of the names suggests the nearest one that exists."""

        async def call() -> T:
            if self._user is None:
                self._user = self._make_user_client()
            return await suggest_names(self._user, work(self._user), **names)

        return self._loop.run(call())

    def _content(self, dataset: str) -> ApiContent:
        return ApiContent(partial(self._call, dataset=dataset), dataset)

    def _ask_query(self, work: Callable[[QueryClient], Awaitable[T]]) -> T:
        async def call() -> T:
            if self._query is None:
                self._query = await self._make_query_client()
            client = self._query
            try:
                return await work(client)
            except DispatcherUnavailableError:
                if self._query is client:  # a stack that was started again may have other addresses
                    self._query = None
                    await client.close()
                raise

        return self._loop.run(call())

    def _run_batch(self, request: QueryRequest) -> PinnedRows:
        async def run(client: QueryClient) -> tuple[list[ResultDownload], ResultSource | None]:
            query_id = (await client.submit(request)).query_id
            try:
                query = await batch_query.await_query(client, query_id, None, lambda _query: None)
                return query.downloads, client.source
            except asyncio.CancelledError:
                await client.cancel(query_id)
                raise

        downloads, source = self._ask_query(run)
        with tempfile.TemporaryDirectory(prefix="trace-query-") as directory:
            path = Path(directory, "result.parquet")
            batch_query.save(downloads, path, source)

            def store(file: IO[bytes]) -> None:
                with path.open("rb") as content:
                    shutil.copyfileobj(content, file, 2**20)

            return SpooledParquet(store)

    def _stack(self) -> Stack:
        if self._remote is not None:
            return self._remote
        try:
            return find_stack(self._home, self._context)
        except NoStackError as error:
            raise ClientError("no_stack", str(error)) from None

    def _make_user_client(self) -> UserClient:
        stack = self._stack()
        again = None if self._remote is not None else lambda: find_stack(self._home, self._context)
        try:
            return UserClient.of_stack(stack, again=again, credential=self._credential)
        except OSError:  # also when the file holds no certificate
            raise ClientError("no_stack", f"{stack.ca_file} holds no CA certificate") from None

    async def _make_query_client(self) -> QueryClient:
        stack = self._stack()
        if self._remote is not None and stack.query_url is None:
            if self._user is None:
                self._user = self._make_user_client()
            query_url = (await self._user.call(routes.WHOAMI)).query_url
            if query_url is None:
                raise ClientError("no_query_service", "this stack runs no Query Service for people")
            stack = msgspec.structs.replace(stack, query_url=query_url)
        try:
            return QueryClient(stack, credential=self._credential)
        except NoStackError as error:
            raise ClientError("no_query_service", str(error)) from None
        except OSError:
            raise ClientError("no_stack", f"{stack.ca_file} holds no CA certificate") from None


def _remote_stack(url: str, ca_file: str | os.PathLike[str] | None, query_url: str | None) -> Stack:
    """A stack of which only the addresses for people are known."""
    return Stack(public_url=url, ca_file="" if ca_file is None else os.fspath(ca_file), query_url=query_url)


def _credential(token: str | None, token_file: str | os.PathLike[str] | None, *, is_remote: bool) -> Credential | None:
    """None: that of the stack that is found."""
    if token is not None:
        return TextCredential(token.strip())
    if token_file is not None:
        return FileCredential(Path(token_file))
    if is_remote and not (token := os.environ.get(TOKEN_VARIABLE, "").strip()):
        raise ClientError("credential_missing", "expected token, token_file or TRACE_TOKEN, received none of them")
    return TextCredential(token) if is_remote and token else None


def _pin_result(result: QueryResult) -> PinnedRows:
    if result.reply.truncated:
        return SpooledParquet(lambda file: download(result.reply, file, result.source))
    return SpooledRows(lambda file: file.write(result.body))


def _read_document(document: str | os.PathLike[str]) -> tuple[bytes, str]:
    """The document, and what it may be called if it does not tell its name."""
    if isinstance(document, str) and "\n" in document:
        return document.encode(), "dag"
    path = Path(document)
    try:
        return path.read_bytes(), path.stem
    except OSError as error:
        raise ClientError("document_missing", f"{path} cannot be read: {error.strerror}") from None
