"""Which tests of `make test-system` run in the same process: those that share what is slow to start."""

from fnmatch import fnmatch

from xdist.scheduler import LoadScopeScheduling

APART = (
    *("runbooks/test_re*.py", "stack/*", "faults/*", "storm/*", "sink/test_crashes.py", "http/test_schemathesis.py"),
    *("*/test_crash_points.py", "follower/test_stored_chains.py"),
)
"""Files whose tests share nothing that is worth a wait: any process may take any of them."""

SHARED = {
    "stack/test_end_to_end.py": "one stack",
    "stack/test_first_dag.py": "one wheel",
    "stack/test_removal.py": "one stack",
    "runbooks/test_re*.py": None,
    "runbooks/*": "one stack",
    "spark/cluster/*": "Spark elsewhere",
    "spark/sql/*": "Spark SQL",
    "spark/*": "Spark",
}
"""Patterns of files, the first that matches decides. Tests of a group use the same stack or the same JVM."""


def group_of(test: str) -> str:
    """The tests of a group run in one process, one after the other. As a rule these are the tests of a file."""
    file = test.partition("::")[0].removeprefix("tests/")
    shared = next((group for pattern, group in SHARED.items() if fnmatch(file, pattern)), None)
    if shared is not None:
        return shared
    return test if any(fnmatch(file, pattern) for pattern in APART) else file


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups, in the order of their first tests. A test that kills its process ends the run."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
