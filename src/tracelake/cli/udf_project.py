"""The directory of a function: what `trace-udf.toml` says of it, and its archive."""

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from tracelake.bundles.archive import ArchiveLimits, ArchiveRefusal, read_archive
from tracelake.bundles.building import build_archive
from tracelake.bundles.entrypoint import BundleWarning, Language, check_entrypoint
from tracelake.cli.udf_templates import PROJECT_FILE, RUST_BUILD
from tracelake.wire.base import Name

MOST_SECONDS = 900
MEMORY_MB = (64, 10_240)
Timeout = Annotated[int, msgspec.Meta(ge=1, le=MOST_SECONDS)]
Memory = Annotated[int, msgspec.Meta(ge=MEMORY_MB[0], le=MEMORY_MB[1])]


class ProjectTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[test]`: what `trace udf test` gives the function."""

    inputs: dict[Name, str] = {}
    """Files by the name of the dataset that they stand for."""
    outputs: list[dict[str, Any]] | None = None
    """As in an event."""
    config: dict[str, Any] = {}
    event: str | None = None
    """A file with the whole event."""
    timeout_seconds: Timeout | None = None
    memory_mb: Memory | None = None


class FunctionProject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a directory says of its function."""

    language: Language
    entrypoint: str | None = None
    leave_out: list[str] = []
    """Names at the root that are not part of the bundle."""
    test: ProjectTest = ProjectTest()


def open_bundle(source: Path, language: Language | None, entrypoint: str | None) -> tuple[bytes, FunctionProject]:
    """The archive of a directory, or one that was built before, of which the options say the rest."""
    if source.is_dir():
        if language is not None or entrypoint is not None:
            raise click.UsageError(f"{source / PROJECT_FILE} has the language and the entrypoint of a directory.")
        archive, _, project = build_project(source)
        return archive, project
    if language is None:
        raise click.UsageError("An archive needs --language, and --entrypoint unless it is Rust.")
    archive, project = source.read_bytes(), FunctionProject(language=language, entrypoint=entrypoint)
    _check(archive, project)
    return archive, project


def build_project(directory: Path) -> tuple[bytes, list[str], FunctionProject]:
    """The archive, the names in it, and the project."""
    project = read_project(directory)
    try:
        archive, names = build_archive(
            directory, ArchiveLimits(), leave_out=frozenset(project.leave_out) | {PROJECT_FILE}
        )
    except ArchiveRefusal as refusal:
        raise _explain(refusal, project) from None
    for warning in _check(archive, project):
        click.echo(f"note: {warning.entry}: {warning.message}", err=True)
    return archive, names, project


def _check(archive: bytes, project: FunctionProject) -> list[BundleWarning]:
    """Refuse here what the stack would refuse after the upload. Its own limits may be narrower."""
    try:
        entries = read_archive(archive, ArchiveLimits())
        return check_entrypoint(archive, entries, project.language, project.entrypoint)
    except ArchiveRefusal as refusal:
        raise _explain(refusal, project) from None


def _explain(refusal: ArchiveRefusal, project: FunctionProject) -> click.ClickException:
    unbuilt = project.language == "rust" and refusal.code in ("archive_empty", "entrypoint_missing")
    hint = f" Build it first: {RUST_BUILD}" if unbuilt else ""
    return click.ClickException(f"{refusal} ({refusal.code}).{hint}")


def read_project(directory: Path) -> FunctionProject:
    path = directory / PROJECT_FILE
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise click.ClickException(
            f"{path} is missing: `trace udf new` writes it, with language, entrypoint and leave_out."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} is not TOML: {error}") from None
    try:
        return msgspec.convert(fields, FunctionProject)
    except msgspec.ValidationError as error:
        raise click.ClickException(
            f"{path}: expected language (python, node or rust), entrypoint (a text), leave_out (a list of names) and a"
            f" section test: {error}."
        ) from None


def digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()
