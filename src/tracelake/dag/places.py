"""Finds the position of a path in a text, for problems that are found after the document was read."""

import re
from collections.abc import Sequence

import msgspec

from tracelake.dag.nodes import ListNode, MapNode, YamlNode, joined, parse
from tracelake.dag.problems import ProblemList
from tracelake.model.dag import Problem

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_IN_THE_TYPE = ("max_length", "precision", "scale")
"""Fields of a column that the short form writes as part of its type."""


def located(text: bytes, problems: Sequence[Problem]) -> list[Problem]:
    """The problems with their positions, in the order of the text, which must be valid."""
    root = parse(text, ProblemList())
    if root is None:
        return list(problems)
    return sorted(
        (_located(root, problem) for problem in problems),
        key=lambda problem: (problem.line, problem.column, problem.path, problem.code),
    )


def _located(root: YamlNode, problem: Problem) -> Problem:
    """A missing field has the position of its map. Columns are counted even if they are a map of name to type."""
    node, path = root, ""
    for name, number in _STEP.findall(problem.path):
        if isinstance(node, MapNode) and number:
            entries = list(node.entries.items())
            if int(number) >= len(entries):
                break
            name, (node, _) = entries[int(number)]
            path = joined(path, name)
            break  # a name with its type, and nothing below it
        if isinstance(node, ListNode) and number and int(number) < len(node.items):
            node, path = node.items[int(number)], f"{path}[{number}]"
            continue
        field = name
        if isinstance(node, MapNode) and name not in node.entries and name in _IN_THE_TYPE and "type" in node.entries:
            field = "type"
        path = joined(path, field)
        if not isinstance(node, MapNode) or field not in node.entries:
            break
        node = node.entries[field][1]
    return msgspec.structs.replace(problem, line=node.line, column=node.column, path=path)
