"""Writes rows to a file: its ending chooses the format, and it appears under its name only when it is whole.

A file is replaced only if that was asked for, and only if it is a regular file: a symbolic link is refused and not
followed. No partial file is left behind. The file is readable by its owner alone, because it holds data that only
people with a token may read; `chmod` shares it.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

import click
import pyarrow as pa

from tracelake.cli.row_formats import ENDINGS, write_pieces


def check_target(output: Path, *, force: bool, endings: Sequence[str] = ENDINGS) -> None:
    """Raises for a target that cannot be written, before anything is read for it."""
    if output.suffix.lower() not in endings:
        listed = ", ".join(endings)
        raise click.UsageError(f"--output: expected a name that ends in one of {listed}, received {output.name}.")
    if not output.parent.is_dir():
        raise click.ClickException(f"there is no directory {output.parent}: create it first, or name another")
    try:
        status = output.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refusal(output, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise click.ClickException(f"{output} is not a regular file, and nothing else is replaced: name another")
    if not force:
        raise _exists(output)


def write_rows(pieces: Iterator[pa.Table], output: Path, *, force: bool) -> int:
    """Writes piece by piece; returns the number of rows."""
    with new_file(output, force=force) as path, path.open("wb") as file:
        first = next(pieces, None)
        if first is None:
            raise click.ClickException("the dataset has no files yet, so there is nothing to write")
        return write_pieces(chain([first], pieces), output.suffix.lower(), file)


@contextmanager
def new_file(output: Path, *, force: bool, endings: Sequence[str] = ENDINGS) -> Iterator[Path]:
    """Yields a file beside the target, which takes its place in the end, or is removed."""
    check_target(output, force=force, endings=endings)
    beside = output.with_name(f".{output.name}.{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        yield beside
        _put_in_place(beside, output, force=force, endings=endings)
    except OSError as error:
        raise _refusal(output, error) from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _put_in_place(beside: Path, output: Path, *, force: bool, endings: Sequence[str]) -> None:
    if force:
        check_target(output, force=True, endings=endings)
        beside.replace(output)
        return
    try:
        output.hardlink_to(beside)  # unlike a rename it replaces nothing, whoever made the file meanwhile
    except FileExistsError:
        raise _exists(output) from None
    except OSError:  # a file system without links
        check_target(output, force=False, endings=endings)
        beside.replace(output)


def _exists(output: Path) -> click.ClickException:
    return click.ClickException(f"{output} exists: replace it with --force, or name another")


def _refusal(output: Path, error: OSError) -> click.ClickException:
    return click.ClickException(f"{output} cannot be written: {error.strerror or type(error).__name__}")
