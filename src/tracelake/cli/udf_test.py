"""`trace udf test`: runs a function against samples, in the sandbox of the runner and without a stack."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from tracelake.bundles.entrypoint import Language
from tracelake.cli.json_output import json_option
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session
from tracelake.cli.text import clean, clean_lines, compact, count
from tracelake.cli.udf_project import MEMORY_MB, MOST_SECONDS, ProjectTest, open_bundle
from tracelake.cli.udf_templates import PROJECT_FILE
from tracelake.errors import TraceError
from tracelake.udf_test.sample_task import SampleEvent, SampleOutput, read_event
from tracelake.udf_test.samples import UdfTestError, find_samples
from tracelake.udf_test.trial import TrialRequest, run_trial
from tracelake.udf_test.verdict import TrialFile, TrialOutput, TrialReport
from tracelake.wire.base import ErrorBody, ErrorInfo

SAMPLES = "sample"
"""The directory of a project whose files are its samples."""
_SECONDS, _MEMORY_MB = 60, 256
"""The defaults of a stack."""
_MIB = 1024 * 1024
_UNUSABLE = "unusable_input"
"""The error code with --json if a sample, an event or the archive cannot be used."""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _read_pairs(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> dict[str, Path]:
    pairs: dict[str, Path] = {}
    for value in values:
        name, equals, file = value.partition("=")
        if not equals or not name or not file:
            raise click.BadParameter(f"expected NAME=FILE, like transfers=transfers.csv; received {value!r}.")
        pairs[name] = Path(file)
    return pairs


@click.command("test")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=FILE",
    callback=_read_pairs,
    help="A file of rows (.parquet, .csv, .json, .jsonl) that stands for the dataset NAME. Repeatable.",
)
@click.option(
    "--event", "event_file", type=_FILE, help="The task as JSON: config, inputs, outputs; else it is made up."
)
@click.option(
    "--timeout",
    type=click.IntRange(1, MOST_SECONDS),
    help=f"Seconds of the run, as timeout_seconds (default {_SECONDS}).",
)
@click.option(
    "--memory-mb", type=click.IntRange(*MEMORY_MB), help=f"Memory of the run, as memory_mb (default {_MEMORY_MB})."
)
@click.option(
    "--language", type=click.Choice(["python", "node", "rust"]), help="Of an archive that was built elsewhere."
)
@click.option("--entrypoint", help="Of such an archive: the function in it, like main.handler.")
@json_option
def command(
    source: Path,
    inputs: dict[str, Path],
    event_file: Path | None,
    timeout: int | None,
    memory_mb: int | None,
    language: Language | None,
    entrypoint: str | None,
    as_json: bool,
) -> None:
    """Run a function against samples, as the runner would: the same sandbox, checks and limits. It needs no stack.

    SOURCE is the directory of a function, or its archive. The files of its directory `sample` are its inputs, each by
    its name, unless `[test]` of trace-udf.toml or --input says otherwise. Queries are answered by the real query
    engine; what the function publishes and writes is shown and thrown away. The exit status is 0 if the run
    completed and a stack would take its results.

    \b
    Examples:
      trace udf test my_function
      trace udf test my_function --input transfers=transfers.parquet --timeout 10
      trace udf test my_function --event task.json --json
    """
    session = Session(as_json=as_json)
    try:
        archive, project = open_bundle(source, language, entrypoint)
        request = TrialRequest(
            archive=archive,
            language=project.language,
            entrypoint=project.entrypoint,
            samples=_choose_samples(source, project.test, inputs, event_file),
            event=_choose_event(source, project.test, event_file),
            timeout_seconds=timeout or project.test.timeout_seconds or _SECONDS,
            memory_mb=memory_mb or project.test.memory_mb or _MEMORY_MB,
        )
        report = asyncio.run(run_trial(request))
    except UdfTestError as error:
        if as_json:
            session.json(ErrorBody(error=ErrorInfo(code=_UNUSABLE, message=str(error))))
        raise click.ClickException(clean(str(error))) from None
    except TraceError as error:
        if as_json:
            session.error(error)
        raise
    status = 0 if report.completed else 1
    session.answer(report, status)
    session.show(*_render(report, request))
    if project.test == ProjectTest() and not request.samples:
        session.show(
            Text(f"note: the function had no inputs; put files into {SAMPLES}/, or name them with --input", "dim")
        )
    raise click.exceptions.Exit(status)


def _choose_samples(
    source: Path, test: ProjectTest, inputs: dict[str, Path], event_file: Path | None
) -> dict[str, Path]:
    """Files by dataset: of the directory `sample`, then of the project file, then of the command line."""
    if not source.is_dir():
        return inputs
    events = {file.resolve() for file in (event_file, _event_of(source, test)) if file is not None}
    samples = {name: file for name, file in find_samples(source / SAMPLES).items() if file.resolve() not in events}
    return samples | {name: source / file for name, file in test.inputs.items()} | inputs


def _event_of(source: Path, test: ProjectTest) -> Path | None:
    return None if test.event is None else source / test.event


def _choose_event(source: Path, test: ProjectTest, event_file: Path | None) -> SampleEvent:
    """The event of a file; what it leaves open is taken from the project file."""
    file = event_file or _event_of(source, test)
    event = SampleEvent()
    if file is not None:
        try:
            event = read_event(file.read_bytes())
        except OSError as error:
            raise UdfTestError(f"{file}: cannot be read ({error.strerror}): write it, or name another.") from None
        except UdfTestError as error:
            raise UdfTestError(f"{file}: {error}") from None
    outputs = event.outputs
    if outputs is None and test.outputs is not None:
        try:
            outputs = msgspec.convert(test.outputs, list[SampleOutput])
        except msgspec.ValidationError as error:
            raise UdfTestError(f"{source / PROJECT_FILE}: [[test.outputs]] do not fit: {error}") from None
    return msgspec.structs.replace(event, config=test.config | event.config, outputs=outputs)


# --- for people


def _render(report: TrialReport, request: TrialRequest) -> list[RenderableType]:
    parts: list[RenderableType] = [*_ending(report, request)]
    for title, text in (("stdout", report.stdout), ("stderr", report.stderr)):
        if text.strip():
            parts += [_title(title), Text(clean_lines(text.rstrip("\n")))]
    for output in report.outputs:
        parts += _output(output)
    if report.files:
        parts += [_title("scratch files"), _files(report.files)]
    if report.events:
        parts += [
            _title("events"),
            Listing(
                report.events,
                ListingColumn("output", lambda event: event.output),
                ListingColumn("unit", lambda event: event.partition_key or f"cursor {event.cursor}"),
            ),
        ]
    if report.refused:
        parts += [
            _title("refused requests"),
            Listing(
                report.refused,
                ListingColumn("request", lambda row: f"{row.method} {row.target}".strip() or "(not HTTP)"),
                ListingColumn("times", lambda row: row.count, right=True),
                ListingColumn("code", lambda row: row.code, whole=True),
                ListingColumn("reason", lambda row: row.message),
            ),
        ]
    if report.problems:
        parts.append(_title("a stack would refuse the results"))
        parts += [Text(clean(problem), "red") for problem in report.problems]
    return parts


def _ending(report: TrialReport, request: TrialRequest) -> list[Text]:
    cost = f" in {report.seconds:.1f} s, with at most {report.peak_bytes / _MIB:.0f} of {request.memory_mb} MiB"
    if report.ending == "completed":
        return [Text.assemble(("completed", "green" if report.completed else "yellow"), cost)]
    again = "a stack would try again" if report.retryable else "a stack would not try again"
    lines = [Text.assemble((f"failed ({clean(report.ending)})", "red"), f"{cost}; {again}")]
    if report.error is not None:
        lines.append(Text(clean(f"{report.error.type}: {report.error.message}"), "bold"))
        lines += [Text(clean_lines(frame)) for frame in report.error.stack]
    elif report.message:
        lines.append(Text(clean(report.message), "bold"))
    return lines


def _output(output: TrialOutput) -> list[RenderableType]:
    if output.kind == "buffered":
        batches = f"{count(output.rows, 'row')} in {count(output.batches, 'batch')}"
        heading = f"{output.name}: {batches if output.batches else 'no rows'}"
        names = list(dict.fromkeys(name for row in output.first_rows for name in row))
        parts: list[RenderableType] = [_title(heading)]
        if names:
            parts.append(Listing(output.first_rows, *(_column(name) for name in names)))
        if output.rows > len(output.first_rows):
            parts.append(Text(f"(the first {len(output.first_rows)} rows)", "dim"))
        return parts
    if not output.files:
        return [_title(f"{output.name}: no files")] if output.kind == "s3" else []
    return [_title(f"{output.name}: {count(len(output.files), 'file')}"), _files(output.files)]


def _column(name: str) -> ListingColumn[dict[str, Any]]:
    def show(row: dict[str, Any]) -> str:
        value = row.get(name)
        return value if isinstance(value, str) else compact(value)

    return ListingColumn(clean(name), show)


def _files(files: Sequence[TrialFile]) -> Listing:
    return Listing(
        files,
        ListingColumn("location", lambda file: file.location),
        ListingColumn("bytes", lambda file: file.size_bytes, right=True),
    )


def _title(text: str) -> Text:
    return Text(f"\n{clean(text)}", style="bold")
