"""Java uses the archive of Spark's classes where there is one, and starts without it otherwise."""

import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from tracelake.spark.java import find_java
from tracelake.spark.spark_home import find_spark_home, link_spark_home


def test_without_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert find_java(tmp_path).archive_options() == []


def test_an_archive_that_does_not_fit_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "with space"))
    java = find_java(tmp_path)
    java.class_archive.parent.mkdir(parents=True)
    java.class_archive.write_bytes(b"something else")
    options = [option.replace('"', "") for option in java.archive_options()]
    assert options[0] == f"-XX:SharedArchiveFile={java.class_archive}"
    ended = subprocess.run([java.program, *options, "-version"], capture_output=True, text=True, check=True)
    assert "archive" not in ended.stdout + ended.stderr


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spark's package at a path that URLs encode, with one of its jars."""
    package = tmp_path / "with späce" / "pyspark"
    (package / "jars").mkdir(parents=True)
    launcher = next((Path(pyspark.__file__).parent / "jars").glob("spark-launcher_*.jar"))
    shutil.copy(launcher, package / "jars")
    monkeypatch.setattr(pyspark, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "with späce"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return package


def test_java_uses_the_archive_for_a_package_at_any_path(package: Path, tmp_path: Path) -> None:
    assert link_spark_home() == find_spark_home() != package
    program, archive, log = find_java(tmp_path).program, tmp_path / "classes.jsa", tmp_path / "classes.log"
    command = ["-cp", f"{find_spark_home()}/jars/*", "org.apache.spark.launcher.Main"]
    for options in (f"-XX:ArchiveClassesAtExit={archive}", f"-XX:SharedArchiveFile={archive}"):
        # It fails, because it is not told what to launch; its own class is loaded by then.
        subprocess.run([program, options, f"-Xlog:class+load:file={log}", *command], capture_output=True, check=False)
    source = next(line for line in log.read_text().splitlines() if "org.apache.spark.launcher.Main " in line)
    assert source.endswith("source: shared objects file (top)")


def test_links_to_another_version_are_not_used(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = link_spark_home()
    monkeypatch.setattr(pyspark, "__version__", "0.0.1")
    assert find_spark_home() == package
    assert link_spark_home() == find_spark_home() != linked
    assert not linked.exists(), "links of the version before are removed"
