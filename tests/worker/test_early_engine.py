"""The engine of a worker is built before its stack is ready, and never for another object store than the stack's."""

from pathlib import Path

from tracelake.adapters.s3.access import S3Access, write_access
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.processes.worker import EarlyEngine
from tracelake.settings import Settings


def settings_of(home: Path) -> Settings:
    settings = Settings.load({"home": home, "spark_isolation": "shared"}, environ={})
    settings.layout.make()
    return settings


def write_store(settings: Settings, port: int) -> S3Access:
    access = S3Access(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret")
    write_access(settings.layout.object_store_file, access)
    return access


def test_an_engine_of_the_same_store_is_taken(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    write_store(settings, 1)
    early = EarlyEngine(settings)
    built = early._engine
    engine = early.take()
    assert engine is built
    early.close()  # it belongs to whoever took it
    assert early.take() is not engine


def test_an_engine_of_another_store_is_replaced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    write_store(settings, 1)
    early = EarlyEngine(settings)
    built = early._engine
    access = write_store(settings, 2)
    engine = early.take()
    assert engine is not built
    assert isinstance(engine.transfer, S3Transfer)
    assert engine.transfer.access == access


def test_a_home_without_a_store_gets_its_engine_later(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    early = EarlyEngine(settings)
    access = write_store(settings, 1)
    transfer = early.take().transfer
    assert isinstance(transfer, S3Transfer)
    assert transfer.access == access
