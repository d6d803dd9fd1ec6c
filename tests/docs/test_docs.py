"""The documents hold what they say: links lead somewhere, names exist, references are complete."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from tools.docs import ROOT

from tracelake.catalogue.evm_columns import EVM_COLUMNS
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import CATALOGUE
from tracelake.processes.main import _COMMANDS
from tracelake.query.metrics import QueryMetrics
from tracelake.runner.metrics import RunnerMetrics
from tracelake.settings import Settings
from tracelake.wire.routes import ROUTES

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ADRS = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
REFERENCE = ROOT / "docs/reference"
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"\s#.*$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")

# A stranger has the clone and nothing else: no paths of one machine, no papers from elsewhere, no package hosts.
BANNED = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users|tmp)\b|\.\./shared|index-url|/simple\b|\b(?:contracts|design|components|style)\.md"
    r"|\b(?:seed documents?|the brief|TODO|FIXME|XXX)\b|\bissue #?\d"
    r"|\b(?:blazing|seamless(?:ly)?|cutting[- ]edge|world-class)\b",
    re.IGNORECASE,
)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that headings get on the usual hosts: lower case, no punctuation, spaces as hyphens."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", text_of(page))):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_that_a_stranger_does_not_have(page: Path) -> None:
    found = BANNED.search(text_of(page))
    assert found is None, f"{found[0]!r}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    """In code, `make X` is a target and `trace X` a command."""
    code = [*CODE.findall(FENCED.sub("", text_of(page))), *map(str, FENCED.findall(text_of(page)))]
    for text in (COMMENT.sub("", part) for part in code):
        for target in re.findall(r"(?:^|\n)make ([a-z][a-z-]*)", text):
            assert target in TARGETS, f"make {target}"
        for command in re.findall(r"(?:^|\n)(?:\.venv/bin/)?trace ([a-z]+)\b", text):
            assert command in _COMMANDS, f"trace {command}"


def test_files_that_the_architecture_names_exist() -> None:
    """Below the package or the repository; a file named beside another one may leave out what they share."""
    paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src/tracelake").rglob("*")]
    code = CODE.findall(text_of(ROOT / "ARCHITECTURE.md"))
    named = [text for text in code if re.fullmatch(r"[\w/]+(/|\.py|\.sql)", text)]
    assert len(named) > 40
    for name in named:
        ending = "/" + name.rstrip("/")
        assert (ROOT / name).exists() or any(path.endswith(ending) for path in paths), name


def test_the_layers_of_the_architecture_are_those_that_are_checked() -> None:
    """Each line of a drawing begins with a layer of the contract, in its order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    inner = [contract["layers"] for contract in contracts if "containers" in contract]
    drawings = [
        [re.split(r"\s{2,}", line)[0].strip() for line in drawing.splitlines()[1:-1]]
        for drawing in FENCED.findall(text_of(ROOT / "ARCHITECTURE.md"))
    ]
    assert len(inner) == 2
    assert all(layers in drawings for layers in inner)


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` | `TRACE_{name.upper()}` |" in text_of(REFERENCE / "settings.md")


def test_every_route_is_documented() -> None:
    page = text_of(REFERENCE / "routes.md")
    for route in ROUTES:
        for listener in route.listeners:
            assert f"| {listener} | {route.method} | `{route.path}` |" in page
            assert f'"{route.path}"' in (REFERENCE / f"openapi-{listener}.json").read_text(encoding="utf-8")


def test_every_metric_is_documented() -> None:
    services = (Metrics(), QueryMetrics(), RunnerMetrics())
    by_name = {family.name: family for metrics in services for family in metrics.registry.collect()}
    families = list(by_name.values())
    page = text_of(REFERENCE / "metrics.md")
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in page, name
    assert len(re.findall(r"^\| `\w", page, re.MULTILINE)) == len(families), "a metric that is gone is documented"


def test_metrics_that_the_documents_name_exist() -> None:
    known = set(re.findall(r"`(trace_\w+)`", text_of(REFERENCE / "metrics.md")))
    known |= {"trace_now", "trace_block"}  # a function of SQL, a method of chain nodes
    known |= {column.name for column in EVM_COLUMNS["traces"]}
    for page in PAGES:
        named = {
            name for code in CODE.findall(FENCED.sub("", text_of(page))) for name in re.findall(r"\btrace_\w+", code)
        }
        assert named <= known, name_of(page)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_error_code_is_documented(code: str) -> None:
    status = CATALOGUE[code].status if CATALOGUE[code].answered else "task"
    assert f"| `{code}` | {status} |" in text_of(REFERENCE / "errors.md")


@pytest.mark.parametrize("page", ADRS, ids=name_of)
def test_decision_records_have_their_parts(page: Path) -> None:
    text = text_of(page)
    number = page.name[:4]
    assert text.startswith(f"# {number}: ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Measurement", "Consequences"]
    measurement = text.partition("## Measurement")[2].partition("## Consequences")[0]
    commands = re.findall(r"`make ([a-z-]+)`", measurement)
    assert commands, "a measurement names the command that prints it"
    assert set(commands) <= TARGETS
    assert len(text.splitlines()) <= 80
    assert f"({page.name})" in text_of(ROOT / "docs/adr/README.md"), "missing in the index"


def test_decision_records_are_numbered_without_gaps() -> None:
    assert [int(page.name[:4]) for page in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_both_commands(command: str) -> None:
    assert re.search(rf"^{command}\b", text_of(ROOT / "README.md"), re.MULTILINE)


def test_every_page_is_in_the_index() -> None:
    index = text_of(ROOT / "docs/README.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_ports_are_the_same_on_every_page() -> None:
    """Whoever follows several pages sets each port once, and no port twice."""
    texts = [text_of(page) for page in (*PAGES, ROOT / "monitoring/README.md")]
    found = {pair for text in texts for pair in re.findall(r"\b(public|task|internal|query)_port = (\d+)", text)}
    assert found == {("public", "8443"), ("task", "8444"), ("internal", "8445"), ("query", "8446")}
    targets = re.findall(r'"127\.0\.0\.1:(\d+)"', text_of(ROOT / "monitoring/prometheus/prometheus.yaml"))
    assert {"8445", "8446"} <= set(targets) <= {"8445", "8446", "9093"}


def test_the_guide_of_functions_can_follow_the_first_dag() -> None:
    """A dataset belongs to one DAG of an org."""
    guide = text_of(ROOT / "docs/functions.md").partition("## Ten minutes")[2]
    published = re.findall(r"^  (\w+):", guide.partition("\npublish:\n")[2].partition("```")[0], re.MULTILINE)
    assert "busy_blocks" in published
    assert not {"blocks", "transactions", "logs", "daily_activity"} & set(published)
