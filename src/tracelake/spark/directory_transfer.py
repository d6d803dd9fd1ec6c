"""Objects in a directory, for tests and measurements. Whoever is only handed one, as Spark's Python processes are,
imports no more than those of a stack do."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tracelake.model.prefixes import parse_uri
from tracelake.ports import ObjectExistsError, ObjectMeta, content_mismatch, hash_file


@dataclass(frozen=True, slots=True)
class DirectoryTransfer:
    """The FileTransfer port on a directory; it can be pickled, as the real one."""

    root: Path

    def path(self, uri: str) -> Path:
        parsed = parse_uri(uri)
        assert parsed is not None, uri
        return self.root.joinpath(parsed[0], parsed[1])

    def download(self, meta: ObjectMeta, path: Path) -> None:
        if meta.sha256 not in (None, hash_file(self.path(meta.uri))):
            raise content_mismatch(self.path(meta.uri).name)
        shutil.copyfile(self.path(meta.uri), path)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        target = self.path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{uuid4().hex}")
        shutil.copyfile(path, aside)
        try:
            target.hardlink_to(aside)
        except FileExistsError:
            if target.read_bytes() != aside.read_bytes():
                raise ObjectExistsError(f"{target.name} is there already, with other bytes") from None
        finally:
            aside.unlink()
        size = target.stat().st_size
        return ObjectMeta(uri, size, f'"{size}"', hash_file(target))
