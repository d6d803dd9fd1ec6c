"""Files of a graph: a picture (SVG), and the languages of Graphviz (DOT) and Mermaid.

Names come from documents, and are escaped for each format; ids of nodes are numbers.
"""

from collections.abc import Callable, Mapping

from tracelake.cli.docs_graph import DocsGraph, GraphNode, draw_graph
from tracelake.cli.text import clean

_STYLE = """
.graph{background:#fff}.graph text{font:13px system-ui,sans-serif;fill:#1b1f24}
.graph .note{font-size:11px;fill:#59636e}.graph rect{stroke:#d1d9e0}.graph .job rect{fill:#ddf4ff}
.graph .source rect{fill:#fff8c5}.graph .dataset rect{fill:#dafbe1}
.graph .edge{fill:none;stroke:#59636e}.graph .back{stroke-dasharray:4 3}
.graph .busy rect{stroke:#0550ae}.graph .busy .note{fill:#0550ae}
.graph .warning rect{stroke:#9a6700;stroke-width:2}.graph .warning .note{fill:#9a6700}
.graph .failed rect{stroke:#cf222e;stroke-width:2}.graph .failed .note{fill:#cf222e;font-weight:bold}
@media (prefers-color-scheme:dark){.graph{background:#0d1117}.graph text{fill:#e6edf3}.graph .note{fill:#9198a1}
.graph rect{stroke:#3d444d}.graph .job rect{fill:#12304a}.graph .source rect{fill:#3b3010}
.graph .dataset rect{fill:#12331f}.graph .edge{stroke:#9198a1}
.graph .busy rect{stroke:#6cb6ff}.graph .busy .note{fill:#6cb6ff}
.graph .warning rect{stroke:#d29922}.graph .warning .note{fill:#d29922}
.graph .failed rect{stroke:#ff7b72}.graph .failed .note{fill:#ff7b72}}
"""
"""Without variables, which some viewers of pictures do not know."""
_COLOURS = {"job": "#ddf4ff", "source": "#fff8c5", "dataset": "#dafbe1"}
_BORDERS = {"": "#59636e", "busy": "#0550ae", "warning": "#9a6700", "failed": "#cf222e"}


def to_svg(graph: DocsGraph, title: str) -> str:
    """A picture that stands alone, with a style for light and dark screens."""
    return draw_graph(graph, title).replace("</title>", f"</title><style>{_STYLE}</style>", 1) + "\n"


def to_dot(graph: DocsGraph, title: str) -> str:
    numbers = _number(graph)
    lines = [f"digraph {_quote_dot(title)} {{", '  rankdir=TB; node [style=filled, fontname="sans-serif"];']
    for key, node in graph.nodes.items():
        shape = "ellipse" if node.kind == "dataset" else "box"
        lines.append(
            f"  n{numbers[key]} [label={_quote_dot(*_texts(node))}, shape={shape}, "
            f'fillcolor="{_COLOURS[node.kind]}", color="{_BORDERS[node.level]}"];'
        )
    for start, end in graph.edges:
        style = " [style=dashed, constraint=false]" if (start, end) in graph.back else ""
        lines.append(f"  n{numbers[start]} -> n{numbers[end]}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(graph: DocsGraph, title: str) -> str:
    numbers = _number(graph)
    lines = [f"%% {clean(title)}", "flowchart TD"]
    for key, node in graph.nodes.items():
        opening, closing = ("([", "])") if node.kind == "dataset" else ("[", "]")
        text = "<br/>".join(_escape_mermaid(part) for part in _texts(node))
        lines.append(f'  n{numbers[key]}{opening}"{text}"{closing}:::{node.level or node.kind}')
    for start, end in graph.edges:
        arrow = "-.->" if (start, end) in graph.back else "-->"
        lines.append(f"  n{numbers[start]} {arrow} n{numbers[end]}")
    lines += [
        f"  classDef {kind} fill:{colour},stroke:{_BORDERS['']},color:#1b1f24" for kind, colour in _COLOURS.items()
    ]
    lines += [
        f"  classDef {level} fill:#ffffff,stroke:{colour},color:{colour},stroke-width:2px"
        for level, colour in _BORDERS.items()
        if level
    ]
    return "\n".join(lines) + "\n"


def _number(graph: DocsGraph) -> Mapping[str, int]:
    return {key: number for number, key in enumerate(graph.nodes)}


def _texts(node: GraphNode) -> tuple[str, ...]:
    return tuple(clean(text) for text in (node.text, *node.notes))


def _quote_dot(*lines: str) -> str:
    return '"' + r"\n".join(clean(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


def _escape_mermaid(text: str) -> str:
    """Everything but plain characters as a numbered entity, which Mermaid writes with a # in place of the &#."""
    return "".join(letter if letter.isalnum() or letter in " _-.,/" else f"#{ord(letter)};" for letter in text)


GRAPH_FILES: Mapping[str, Callable[[DocsGraph, str], str]] = {".svg": to_svg, ".dot": to_dot, ".mmd": to_mermaid}
"""By the ending of a file's name."""
