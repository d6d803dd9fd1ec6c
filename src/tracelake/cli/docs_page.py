"""One static HTML page about datasets and the jobs that make them: no script, nothing from elsewhere.

Names and descriptions are written by people of the org, and are escaped wherever they stand. The page forbids itself
everything but its own style, by a content security policy with the hash of the style.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import msgspec

from tracelake.cli.datasets import example_query, live_text, python_statement
from tracelake.cli.docs_graph import DocsGraph, GraphNode, draw_graph
from tracelake.cli.text import clean, storage_text
from tracelake.wire.base import Reply
from tracelake.wire.datasets import DatasetContent, DatasetDetail
from tracelake.wire.jobs import JobRow, JobsReply

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#59636e;--paper:#fff;--box:#f6f8fa;--line:#d1d9e0;--link:#0550ae;
--job:#ddf4ff;--source:#fff8c5;--dataset:#dafbe1;--warn:#9a6700}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--paper:#0d1117;--box:#151b23;--line:#3d444d;
--link:#6cb6ff;--job:#12304a;--source:#3b3010;--dataset:#12331f;--warn:#d29922}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem;max-width:75rem;color:var(--ink);background:var(--paper);
font:16px/1.5 system-ui,sans-serif}
a{color:var(--link)}a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link)}
h1,h2,h3{line-height:1.2;overflow-wrap:anywhere}section,h2{margin-top:2.5rem}h2{
border-bottom:1px solid var(--line)}
.dim{color:var(--dim)}.warn{color:var(--warn)}
.skip{position:absolute;left:-999rem}.skip:focus{position:static}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;background:var(--box);margin:1rem 0}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.35rem .75rem;
border-bottom:1px solid var(--line)}tr:last-child td{border-bottom:0}td{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem}dt{color:var(--dim)}dd{margin:0;
overflow-wrap:anywhere}
code,pre{font:14px/1.5 ui-monospace,monospace}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--box);
padding:.75rem;border-radius:6px}
.graph{display:block;margin:auto}.graph text{font:13px system-ui,sans-serif;fill:var(--ink)}
.graph rect{stroke:var(--line)}.graph .job rect{fill:var(--job)}.graph .source rect{fill:var(--source)}
.graph .dataset rect{fill:var(--dataset)}.graph a:focus-visible rect{stroke:var(--link);stroke-width:3}
.edge{fill:none;stroke:var(--dim)}.back{stroke-dasharray:4 3}
@media (max-width:40rem){body{padding:1rem}thead{display:none}tbody,tr,td{display:block}td{padding:.1rem 0;border:0}
tr{padding:.4rem 0;border-bottom:1px solid var(--line)}td:empty{display:none}
td:not(:first-child,[data-name=""])::before{content:attr(data-name) ": ";color:var(--dim)}dl{display:block}
dd{margin-bottom:.4rem}}
@media print{body{max-width:none;padding:0;font-size:11px}.skip{display:none}.scroll{overflow:visible;border:0}
.graph{max-width:100%;height:auto}section{break-inside:avoid-page}a{color:inherit;text-decoration:none}}
"""


class DocsData(Reply, frozen=True, kw_only=True):
    """What the page is made of."""

    org: str
    made_at: datetime
    dags: list[JobsReply]
    datasets: list[DatasetDetail]


def _row_count(content: DatasetContent | None) -> str:
    if content is None or content.rows is None:
        return ""
    bound = "about " if content.estimated else "more than " if content.more else ""
    return f"{bound}{content.rows:,}"


def _text(value: object) -> str:
    return escape(clean(str(value)), quote=True)


class DocsPage:
    def __init__(self, data: DocsData) -> None:
        self._data = data
        names = [item.dataset.name for item in data.datasets]
        self._anchors = {
            name: f"dataset-{name}" if _PLAIN_NAME.fullmatch(name) else f"dataset-{number}-of-page"
            for number, name in enumerate(names)
        }
        self._jobs: list[tuple[str, JobRow]] = [
            (f"{jobs.dag}/{job.name}", job) for jobs in data.dags for job in jobs.jobs
        ]
        self._writer_of = {output.dataset: name for name, job in self._jobs for output in job.outputs}
        self._job_anchors = {
            name: f"job-{name.replace('/', '.')}" if _PLAIN_NAME.fullmatch(name.replace("/", "")) else f"job-{number}"
            for number, (name, _) in enumerate(self._jobs)
        }

    def render(self) -> str:
        data = self._data
        title = _text(f"Datasets of {data.org}")
        digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        names = ", ".join(f"{_text(item.dag)} (version {item.version})" for item in data.dags) or "No DAG is active"
        parts = [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{title}</title><style>{STYLE}</style></head><body>",
            f'<a class="skip" href="#datasets">To the datasets</a><header><h1>{title}</h1>',
            f'<p class="dim">{names}. As of {_moment(data.made_at)}.</p></header><main>',
            *(self._dag(item) for item in data.dags),
            '<h2 id="datasets">Datasets</h2>',
            self._contents(),
            *(self._dataset(item) for item in data.datasets),
            "</main></body></html>\n",
        ]
        return "".join(parts)

    # --- graphs

    def _dag(self, jobs: JobsReply) -> str:
        picture = draw_graph(self._graph(jobs), f"Jobs and datasets of {jobs.dag}")
        rows = [
            [
                f'<span id="{_text(self._job_anchors[f"{jobs.dag}/{job.name}"])}">{_text(job.name)}</span>',
                _text(job.source or job.operator or job.activation),
                self._links(edge.dataset for edge in job.inputs),
                self._links(output.dataset for output in job.outputs if output.dataset in self._anchors),
            ]
            for job in jobs.jobs
        ]
        label = _text(f"Graph of {jobs.dag}")
        return (
            f"<h2>{_text(jobs.dag)}</h2>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{picture}</div>'
            f"<details open><summary>Jobs of {_text(jobs.dag)}</summary>"
            f"{_table(('job', 'runs', 'reads', 'writes'), rows)}</details>"
        )

    def _graph(self, jobs: JobsReply) -> DocsGraph:
        """Published datasets are nodes; what a job passes to another under no name is an edge between the two."""
        graph = DocsGraph()
        writers = {output.dataset: job.name for job in jobs.jobs for output in job.outputs}
        for job in jobs.jobs:
            kind = "source" if job.activation == "source" else "job"
            anchor = self._job_anchors[f"{jobs.dag}/{job.name}"]
            graph.add(GraphNode(f"job {job.name}", job.name, "source" if kind == "source" else "job", anchor))
        for job in jobs.jobs:
            for output in job.outputs:
                if output.dataset in self._anchors:
                    graph.connect(f"job {job.name}", self._add_dataset(graph, output.dataset))
            for edge in job.inputs:
                own = writers.get(edge.dataset) == job.name
                if edge.dataset in self._anchors:
                    graph.connect(self._add_dataset(graph, edge.dataset), f"job {job.name}", back=own)
                elif edge.dataset in writers:
                    graph.connect(f"job {writers[edge.dataset]}", f"job {job.name}", back=own)
        return graph

    def _add_dataset(self, graph: DocsGraph, name: str) -> str:
        graph.add(GraphNode(f"dataset {name}", name, "dataset", self._anchors[name]))
        return f"dataset {name}"

    # --- datasets

    def _contents(self) -> str:
        rows = [
            [
                self._link(item.dataset.name),
                _text(item.description),
                _text(item.owner),
                _row_count(item.content),
                _moment(item.dataset.updated_at),
            ]
            for item in self._data.datasets
        ]
        return _table(("dataset", "description", "owner", "rows", "updated"), rows) if rows else "<p>There is none.</p>"

    def _dataset(self, detail: DatasetDetail) -> str:
        row = detail.dataset
        made_from = sorted({edge.dataset for _, job in self._writers(detail) for edge in job.inputs} - {row.name})
        read_by = sorted({f"{item.dag}/{item.job}" for item in detail.consumers})
        facts = [
            ("owner", _text(detail.owner)),
            ("written by", ", ".join(self._job_link(name) for name in row.writers)),
            ("made from", self._links(made_from)),
            ("read by", ", ".join(self._job_link(name) for name in read_by)),
            ("storage", _text(storage_text(row.storage))),
            *_content_facts(detail),
            ("updated", _moment(row.updated_at)),
        ]
        pairs = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value)
        return (
            f'<section id="{_text(self._anchors[row.name])}"><h3>{_text(row.name)}</h3>'
            f"{f'<p>{_text(detail.description)}</p>' if detail.description else ''}<dl>{pairs}</dl>"
            f"{_columns(detail)}{_checks(detail)}{_commands(detail)}"
            '<p><a href="#datasets">All datasets</a></p></section>'
        )

    def _writers(self, detail: DatasetDetail) -> list[tuple[str, JobRow]]:
        return [(name, job) for name, job in self._jobs if name in detail.dataset.writers]

    def _link(self, dataset: str) -> str:
        """To the dataset, or to the job that writes it if it has no section: such a dataset is not published."""
        anchor = self._anchors.get(dataset)
        if anchor is None:
            writer = self._writer_of.get(dataset)
            return _text(dataset) if writer is None else self._job_link(writer)
        return f'<a href="#{_text(anchor)}">{_text(dataset)}</a>'

    def _links(self, datasets: Iterable[str]) -> str:
        return ", ".join(self._link(name) for name in datasets)

    def _job_link(self, job: str) -> str:
        anchor = self._job_anchors.get(job)
        return _text(job) if anchor is None else f'<a href="#{_text(anchor)}">{_text(job)}</a>'


def _content_facts(detail: DatasetDetail) -> list[tuple[str, str]]:
    content = detail.content
    if content is None:
        if detail.dataset.storage == "live":
            return [("rows are in", _text(live_text(detail) or ""))]
        return [("content", "nothing is committed yet")]
    more = "more than " if content.more else ""
    gaps = [f"unit {item.unit} of {item.job} was {item.state}" for item in detail.given_up]
    gaps += [f"no unit covers {gap.text}" for gap in content.gaps]
    covered = content.windows
    if not covered and content.first_block is not None and detail.dataset.storage != "buffered":
        covered = f"blocks {content.first_block} to {content.last_block}"
    return [
        ("rows", _row_count(content)),
        ("units", f"{more}{content.units:,}"),
        ("covers", _text(covered)),
        ("rows are in", _text(live_text(detail) or "")),
        ("gaps", f'<span class="warn">{_text("; ".join(gaps))}</span>' if gaps else ""),
    ]


def _columns(detail: DatasetDetail) -> str:
    if not detail.columns:
        return ""
    rows = [
        [
            f"<code>{_text(column.name)}</code>",
            f"<code>{_text(column.type)}</code>",
            "" if column.nullable else "not null",
            _text(column.description),
        ]
        for column in detail.columns
    ]
    note = "" if detail.columns_complete else '<p class="dim">There may be other columns.</p>'
    return f"<h4>Columns</h4>{_table(('column', 'type', '', 'description'), rows)}{note}"


def _checks(detail: DatasetDetail) -> str:
    """Checks, if the Dispatcher tells of them."""
    checks: list[dict[str, Any]] = msgspec.to_builtins(detail).get("checks", [])
    rows = [
        [_text(item.get(name, "")) for name in ("name", "kind", "expected", "severity", "state")] for item in checks
    ]
    return f"<h4>Checks</h4>{_table(('check', 'kind', 'expects', 'severity', 'state'), rows)}" if rows else ""


def _commands(detail: DatasetDetail) -> str:
    name = detail.dataset.name
    if detail.dataset.storage not in ("s3", "buffered", "live"):
        return ""
    query = example_query(detail)
    lines = (
        f"trace read {name}",
        f'trace query "{query}"' if '"' not in query else f"trace query '{query}'",
        f"{python_statement(query)}  # in Python",
    )
    text = "\n".join(_text(line) for line in lines)
    return f"<h4>How to read it</h4><pre><code>{text}</code></pre>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    lines = [
        "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in zip(names, row, strict=True)) for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
