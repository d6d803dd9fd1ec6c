"""Checks calls of functions: the name against the table of functions, each argument against its kind."""

from collections.abc import Callable, Mapping
from typing import Any

from tracelake.errors import TraceError
from tracelake.query.gate.functions import (
    AGGREGATES,
    SIGNATURES,
    TABLE_SIGNATURES,
    WINDOWS,
    CallForm,
    reason_against,
)
from tracelake.query.gate.functions.kinds import KINDS, NO_CONSTANT, Constant, NoConstant
from tracelake.query.gate.functions.signatures import NAMED_OPTIONS
from tracelake.query.gate.parameters import TypedValue
from tracelake.query.gate.refusals import closest, quote

_LISTS = frozenset({"list_value", "list_pack", "array_value"})


class CallChecker:
    def __init__(self, parameters: Mapping[str, TypedValue], refuse: Callable[..., TraceError]) -> None:
        self._parameters = parameters
        self._refuse = refuse

    def check(self, node: Any, arguments: list[Any], *, window: bool, table: bool) -> str:
        """The function's name in small letters. Raises TraceError."""
        name = node["function_name"]
        if not isinstance(name, str) or not name.isascii() or node["qualified_name"] != {"path": [name]}:
            message = f"Write the function {quote(str(name))} without a schema or a column before it."
            raise self._refuse("query_not_allowed", message, node, name=str(name))
        if node["schema"] != "" or node["catalog"] != "":
            message = f"Write the function {quote(name)} without a schema or a column before it."
            raise self._refuse("query_not_allowed", message, node, name=name)
        lower = name.lower()
        signatures = (TABLE_SIGNATURES if table else SIGNATURES).get(lower)
        if signatures is None:
            raise self._unknown(name, node, table=table)
        self._check_clauses(lower, node, window=window)
        self._check_arguments(name, signatures, arguments, node)
        return lower

    def _unknown(self, name: str, node: Any, *, table: bool) -> TraceError:
        if (reason := reason_against(name, table=table)) is not None:
            message = f"The function {quote(name)} is not allowed: {reason}."
            return self._refuse("query_not_allowed", message, node, name=name)
        if table and name.lower() in SIGNATURES:
            message = f"The function {quote(name)} cannot stand in FROM."
            return self._refuse("query_not_allowed", message, node, name=name)
        suggestions = closest(name, TABLE_SIGNATURES if table else SIGNATURES)
        message = f"There is no function {quote(name)}."
        return self._refuse("query_unknown_function", message, node, name=name, suggestions=suggestions)

    def _check_clauses(self, name: str, node: Any, *, window: bool) -> None:
        if window:
            if name not in AGGREGATES | WINDOWS:
                message = f"The function {quote(name)} takes no OVER."
                raise self._refuse("query_not_allowed", message, node, name=name)
            return
        has_clause = node["distinct"] or node["filter"] is not None or node["order_bys"]["orders"]
        if (has_clause and name not in AGGREGATES) or (name in WINDOWS and name not in AGGREGATES):
            message = f"The function {quote(name)} is used in a way that it does not support."
            raise self._refuse("query_not_allowed", message, node, name=name)

    def _check_arguments(self, name: str, signatures: tuple[CallForm, ...], arguments: list[Any], node: Any) -> None:
        names = {argument["name"].lower() for argument in arguments if argument["name"]}
        options = NAMED_OPTIONS.get(name.lower())
        if names and (not signatures[0].takes_names or (options is not None and names - options)):
            message = f"The function {quote(name)} does not take an argument of this name."
            raise self._refuse("query_not_allowed", message, node, name=name)
        problem: tuple[str, Any] | None = None
        for signature in signatures:
            kinds = signature.kinds_of(len(arguments))
            if kinds is None:
                continue
            problem = self._problem(name, kinds, [argument["expression"] for argument in arguments])
            if problem is None:
                return
        if problem is None:
            message = f"The function {quote(name)} does not take {len(arguments)} arguments."
            raise self._refuse("query_invalid", message, node, name=name)
        raise self._refuse("query_not_allowed", problem[0], problem[1] or node, name=name)

    def _problem(self, name: str, kinds: tuple[str, ...], arguments: list[Any]) -> tuple[str, Any] | None:
        for index, (kind, argument) in enumerate(zip(kinds, arguments, strict=True), 1):
            if kind == "value":
                continue
            rule = KINDS[kind]
            if kind == "lambda":
                fits = argument["class"] == "LAMBDA"
            else:
                constant = constant_of(argument, self._parameters)
                fits = not isinstance(constant, NoConstant) and rule.accepts(constant)
            if not fits:
                message = f"Argument {index} of {quote(name)} has to be {rule.expected}: {rule.reason}."
                return message, argument
        return None


def constant_of(node: Any, parameters: Mapping[str, TypedValue]) -> Constant:
    """The value of a literal, of a cast of one, of a parameter, or of a list of them."""
    kind = node.get("class") if isinstance(node, dict) else None
    if kind == "CAST":
        return constant_of(node["child"], parameters)
    if kind == "PARAMETER":
        parameter = parameters.get(node["identifier"])
        return NO_CONSTANT if parameter is None else parameter.value
    if kind == "FUNCTION" and str(node["function_name"]).lower() in _LISTS:
        items = [constant_of(argument["expression"], parameters) for argument in node["arguments"]]
        return NO_CONSTANT if any(isinstance(item, NoConstant) for item in items) else list(items)
    if kind != "CONSTANT":
        return NO_CONSTANT
    return _literal_value(node["literal"])


def _literal_value(literal: Any) -> Constant:
    kind, text = literal["kind"], literal["text"]
    if kind == "NULL_LITERAL":
        return None
    if kind == "BOOLEAN":
        return bool(text == "true")
    if kind == "STRING":
        return str(text)
    try:
        return int(text) if kind == "INTEGER" and len(text) < 1_000 else float(text)
    except ValueError:
        return NO_CONSTANT
