"""Bounds values that a query makes from constants alone.

DuckDB computes some of them while it binds names, before anything runs, so their cost falls on the gate. Values that
come from rows cost the engine, whose sandbox bounds them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tracelake.errors import TraceError
from tracelake.query.gate.calls import constant_of
from tracelake.query.gate.functions import SIGNATURES
from tracelake.query.gate.functions.kinds import NoConstant
from tracelake.query.gate.parameters import TypedValue

MAX_MADE = 1_000_000
MAX_SERIES = 100_000
_SERIES = frozenset({"range", "generate_series"})
_REPLACING = frozenset({"replace", "regexp_replace", "array_to_string", "string_agg", "list_string_agg"})


class ConstantSizes:
    def __init__(self, parameters: Mapping[str, TypedValue], refuse: Callable[..., TraceError]) -> None:
        self._parameters = parameters
        self._refuse = refuse

    def check(self, node: Any) -> int:
        """The size of the largest value under the node, as far as the text tells. Raises TraceError."""
        if isinstance(node, list):
            return max((self.check(item) for item in node), default=1)
        if not isinstance(node, dict):
            return 1
        if node.get("type") == "TABLE_FUNCTION":
            # It streams its rows.
            return max(self.check(argument["expression"]) for argument in node["function"]["arguments"] or [_NOTHING])
        if node.get("class") == "FUNCTION":
            size = self._call(node)
            if size > MAX_MADE:
                message = f"Constants make a value of more than {MAX_MADE:,} characters or items here."
                raise self._refuse("query_not_allowed", message, node, name=node["function_name"])
            return size
        if node.get("class") == "CONSTANT":
            return max(1, len(str(node["literal"]["text"])))
        return max((self.check(value) for value in node.values()), default=1)

    def _call(self, node: Any) -> int:
        name = str(node["function_name"]).lower()
        arguments = [argument["expression"] for argument in node["arguments"]]
        sizes = [self.check(argument) for argument in arguments]
        if name in _SERIES:
            return self._series(node, name, arguments)
        total = sum(sizes)
        if name in _REPLACING and len(sizes) > 1:
            return sizes[0] * max(sizes[1:])
        for signature in SIGNATURES.get(name, ()):
            for kind, argument in zip(signature.kinds_of(len(arguments)) or (), arguments, strict=False):
                number = constant_of(argument, self._parameters)
                if kind == "size" and isinstance(number, int):
                    return max(total, abs(number) * (sizes[0] if name == "repeat" else 1))
        return total

    def _series(self, node: Any, name: str, arguments: list[Any]) -> int:
        numbers = [constant_of(argument, self._parameters) for argument in arguments]
        if any(isinstance(number, NoConstant | bool) or not isinstance(number, int) for number in numbers):
            return 1
        first, last, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers[:2], numbers[2:] or 1)
        step = step[0] if isinstance(step, list) else step
        if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
            size = abs(last - first) // max(1, abs(step))
            if size > MAX_SERIES:
                message = f"A list made by {name} has at most {MAX_SERIES:,} items; in FROM it may have any number."
                raise self._refuse("query_not_allowed", message, node, name=name)
            return max(1, size)
        return 1


_NOTHING: dict[str, Any] = {"expression": None}
