"""Fixtures that every kind of test may use. They are synchronous and hand out DSNs; see `tests.support`."""

import asyncio
import atexit
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.java import QUICK_JAVA
from tests.support.postgres import TestCluster
from tests.support.real_stack import RealStack
from tests.support.scheduling import GroupScheduling
from tests.support.scratch import in_memory

# The same examples every time: a run says something about the change, not about its luck. The soak looks for new ones.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")


@atexit.register
def _silence_duckdb() -> None:
    """Its bindings print a report about their own objects when an interpreter ends that has loaded them."""
    if "duckdb" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def pytest_configure(config: pytest.Config) -> None:
    """Not in a fixture: pytest's own temporary directories follow, and the processes of xdist inherit it."""
    scratch = ExitStack()
    scratch.enter_context(in_memory())
    config.add_cleanup(scratch.close)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are millions of objects that live until the end: the collector need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


TESTS = Path(__file__).parent
SYSTEM = (
    *("faults/*", "runbooks/*", "storm/*", "*/test_*costs.py", "*/test_crash*.py"),
    *("http/test_schemathesis.py", "backpressure/test_random_pressure.py"),
    *(
        "stack/test_buffered.py",
        "stack/test_demo.py",
        "stack/test_feeds.py",
        "stack/test_end_to_end.py",
        "stack/test_pipeline.py",
        "stack/test_removal.py",
    ),
    *("stack/test_secret_stack.py", "stack/test_up*.py", "spark/cluster/*", "spark/faults/*"),
    *("spark/test_runaway.py", "security/test_process_isolation.py"),
)
"""Files whose tests `make test-system` runs. A single test elsewhere may carry the marker itself."""


LONG = (
    *("spark/*", "storm/*", "stack/*", "runbooks/*", "faults/*", "backpressure/test_random_pressure.py"),
    *("*/test_*machine.py", "deploy/test_nothing_is_lost.py", "model/test_transitions.py"),
    "follower/test_stored_chains.py",
)
"""Files with tests of many seconds. They begin first, so that no process is left alone with one at the end."""


@cache
def matches(file: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(file.relative_to(TESTS).as_posix(), pattern) for pattern in patterns)


def needs_a_jvm(item: pytest.Item) -> bool:
    return matches(item.path, ("spark/*",)) and "shared" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `make test-system`; what has no marker is run by `make test`."""
    for item in items:
        if matches(item.path, SYSTEM) or needs_a_jvm(item):
            item.add_marker("system")
    items.sort(key=lambda item: not matches(item.path, LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports travel between processes as UTF-8; what strange exceptions put into a log may be no such text."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def cheap_spark() -> Iterator[None]:
    """Most stacks of tests run no Spark: their workers start it when a task needs it, and Java does not optimise it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_SPARK_SPARE", "false")
        patch.setenv("JDK_JAVA_OPTIONS", f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {QUICK_JAVA}".strip())
        yield


_TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@pytest.fixture(scope="session", autouse=True)
def plain_terminal() -> Iterator[None]:
    """Gives every test and the processes it starts the same terminal, whichever one the suite was started from.

    Rich reads these variables even where a test names the width or forces a terminal.
    """
    with pytest.MonkeyPatch.context() as patch:
        for variable in _TERMINAL:
            patch.delenv(variable, raising=False)
        patch.setenv("TERM", "xterm")
        yield


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[RealStack]:
    """One real stack for tests that work on DAGs of their own and leave the stack serving."""
    with RealStack().running() as stack:
        yield stack


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """One embedded Postgres for the whole session."""
    running = TestCluster.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def fresh_state_dsn(cluster: TestCluster) -> Iterator[Callable[[], str]]:
    """Makes migrated state databases; they are dropped after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(cluster.fresh("state"))
        return made[-1]

    yield make
    for dsn in made:
        asyncio.run(cluster.drop(dsn))


@pytest.fixture
def fresh_queue_dsn(cluster: TestCluster) -> Iterator[Callable[[], str]]:
    """Makes migrated queue databases, seen as the role that workers have; dropped after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(cluster.fresh("queue", role="trace_queue"))
        return made[-1]

    yield make
    for dsn in made:
        asyncio.run(cluster.drop(dsn))


@pytest.fixture
def state_dsn(fresh_state_dsn: Callable[[], str]) -> str:
    """A migrated state database of this test's own."""
    return fresh_state_dsn()


@pytest.fixture
def queue_dsn(fresh_queue_dsn: Callable[[], str]) -> str:
    """A migrated queue database of this test's own, by the role `trace_queue`."""
    return fresh_queue_dsn()
