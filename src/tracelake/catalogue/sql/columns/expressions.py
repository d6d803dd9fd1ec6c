"""Types of expressions, and the mistakes in them: names that stand for no column or for several, types that do not fit.

Every part of an expression is visited, also where the type of the whole is not certain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

from sqlglot import exp

from tracelake.catalogue.evm_columns import find_optional_column
from tracelake.catalogue.sql.columns.functions import call_type, check_arguments
from tracelake.catalogue.sql.columns.operators import (
    TypeMismatchError,
    arithmetic,
    bitwise,
    common,
    compare,
    condition,
    join_texts,
)
from tracelake.catalogue.sql.columns.scopes import NameScope, SqlRelation, field_type
from tracelake.catalogue.sql.columns.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    INT,
    INTEGRAL,
    STRING,
    TIMES,
    UNKNOWN,
    SqlType,
    array,
    decimal,
    parse_type,
)
from tracelake.catalogue.sql.findings import shown
from tracelake.catalogue.sql.nodes import offset, plain_text

MAX_FINDINGS = 20
MAX_STEPS = 200_000
"""The work that one query may cost: nodes and columns of its relations."""
_SHOWN = 8
_SIGNS: Mapping[type[Any], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "DIV",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_TYPE_NAMES = {
    "TEXT": "string",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMPNTZ": "timestamp_ntz",
}


@dataclass(frozen=True, slots=True)
class ColumnFinding:
    """A mistake in a query that Spark would report when it runs."""

    code: str
    """`unknown_column`, `ambiguous_column` or `type_mismatch`."""
    message: str
    offset: int
    suggestion: str = ""


class AnalysisLimitError(Exception):
    """The query costs too much to analyse; its columns are unknown."""


@dataclass(slots=True)
class ExpressionTypes:
    text: str
    findings: list[ColumnFinding] = field(default_factory=list)
    steps: int = 0

    def subquery(self, node: Any, scope: NameScope) -> SqlRelation:
        raise NotImplementedError

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise AnalysisLimitError

    def report(self, code: str, message: str, node: Any, suggestion: str = "") -> None:
        finding = ColumnFinding(code, message, offset(node), suggestion)
        if len(self.findings) < MAX_FINDINGS and finding not in self.findings:
            self.findings.append(finding)

    def type_of(self, node: Any, scope: NameScope) -> SqlType:
        self.spend()
        rule = _RULES.get(type(node))
        if rule is not None:
            return rule(self, node, scope)
        if type(node) in _SIGNS:
            return self._arithmetic(node, scope)
        if isinstance(node, _COMPARISONS):
            return self._compared(node, scope, [node.this, node.expression])
        self.visit(node, scope)
        return UNKNOWN

    def visit(self, node: Any, scope: NameScope) -> None:
        """Look at everything below a node whose type is of no interest."""
        for child in node.iter_expressions():
            self.type_of(child, scope)

    # --- names

    def _column(self, node: Any, scope: NameScope) -> SqlType:
        if isinstance(node.this, exp.Star):
            return UNKNOWN
        parts = [str(part.this) for part in node.parts]
        answer = scope.find(parts)
        name = parts[-1] if len(parts) == 1 or scope.has_relation(parts[0].lower()) else parts[0]
        if answer.outcome == "ambiguous":
            owners = [owner for owner in answer.owners if owner]
            hint = " or ".join(f"`{owner}.{name}`" for owner in owners[:_SHOWN]) if len(owners) > 1 else ""
            several = f": {', '.join(f'`{owner}`' for owner in owners[:_SHOWN])} have it" if len(owners) > 1 else ""
            self.report(
                "ambiguous_column",
                f"the column {shown(name)} is ambiguous{several}",
                node,
                f"Write {hint}." if hint else "Rename one of them where it comes from.",
            )
        elif answer.outcome == "missing":
            self._report_missing(node, parts, scope)
        return answer.type

    def _report_missing(self, node: Any, parts: Sequence[str], scope: NameScope) -> None:
        qualified = len(parts) > 1 and scope.has_relation(parts[0].lower())
        name, owner = (parts[1], parts[0].lower()) if qualified else (parts[0], "")
        if len(parts) > 1 and not qualified:
            message = f"there is no relation or column {shown(name)}"
        else:
            message = f"there is no column {shown(name)}" + (f" in {shown(parts[0])}" if qualified else "")
        names = list(dict.fromkeys(islice(scope.names(owner), 2000)))
        self.spend(len(names))
        folded = {candidate.lower(): candidate for candidate in names}
        close = get_close_matches(name.lower()[:128], folded, 1, 0.6)
        hint = f"Did you mean `{folded[close[0]]}`?" if close else ""
        if table := find_optional_column(name.lower(), folded.keys()):
            entry = f"columns: {{{table}: [{name.lower()}]}}"
            hint = f"It is an optional column: add it to the chain, or to `config` of evm_ingest, as `{entry}`."
        elif not hint and names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            hint = f"There are {', '.join(f'`{item}`' for item in names[:_SHOWN])}{more}."
        self.report("unknown_column", message, node, hint)

    def _dot(self, node: Any, scope: NameScope) -> SqlType:
        return field_type(self.type_of(node.this, scope), str(getattr(node.expression, "this", "")))

    def _bracket(self, node: Any, scope: NameScope) -> SqlType:
        whole = self.type_of(node.this, scope)
        for item in node.expressions:
            self.type_of(item, scope)
        return whole.items[-1] if whole.kind in ("array", "map") else UNKNOWN

    # --- values

    def _literal(self, node: Any, _: NameScope) -> SqlType:
        return STRING if node.is_string else number_type(str(node.this))

    def _placeholder(self, node: Any, _: NameScope) -> SqlType:
        return STRING if str(node.this) == "partition_key" else UNKNOWN

    def _cast(self, node: Any, scope: NameScope) -> SqlType:
        self.type_of(node.this, scope)
        return data_type(node.args["to"])

    def _same(self, node: Any, scope: NameScope) -> SqlType:
        return self.type_of(node.this, scope)

    def _negated(self, node: Any, scope: NameScope) -> SqlType:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number_type(str(node.this.this), negative=True)
        kind = self.type_of(node.this, scope)
        if kind.kind in ("binary", "boolean") or kind.kind in TIMES:
            self.report("type_mismatch", f"`-` takes a number, not {kind}", node.this)
        return UNKNOWN if kind == STRING else kind

    def _inverted(self, node: Any, scope: NameScope) -> SqlType:
        kind = self.type_of(node.this, scope)
        return kind if kind in INTEGRAL else UNKNOWN

    # --- operations

    def _arithmetic(self, node: Any, scope: NameScope) -> SqlType:
        sign = _SIGNS[type(node)]
        left, right = self.type_of(node.this, scope), self.type_of(node.expression, scope)
        if "decimal" in (left.kind, right.kind):
            left, right = _literal_decimal(node.this, left), _literal_decimal(node.expression, right)
        try:
            return arithmetic(sign, left, right)
        except TypeMismatchError:
            return self._mismatch(node, f"`{sign}` cannot be applied to {left} and {right}")

    def _mismatch(self, node: Any, message: str) -> SqlType:
        self.report("type_mismatch", message, node, "CAST one of them, or use another column.")
        return UNKNOWN

    def _bitwise(self, node: Any, scope: NameScope) -> SqlType:
        left, right = self.type_of(node.this, scope), self.type_of(node.expression, scope)
        try:
            return bitwise(left, right)
        except TypeMismatchError:
            return self._mismatch(node, f"bits of {left} and {right} cannot be combined")

    def _compared(self, node: Any, scope: NameScope, parts: Sequence[Any]) -> SqlType:
        types = [self.type_of(part, scope) for part in parts]
        for kind in types[1:]:
            try:
                compare(types[0], kind)
            except TypeMismatchError:
                self._mismatch(node, f"{types[0]} and {kind} cannot be compared")
        return BOOLEAN

    def _between(self, node: Any, scope: NameScope) -> SqlType:
        return self._compared(node, scope, [node.this, node.args["low"], node.args["high"]])

    def _in(self, node: Any, scope: NameScope) -> SqlType:
        if (query := node.args.get("query")) is not None:
            self.type_of(node.this, scope)
            self.subquery(query, scope)
            return BOOLEAN
        return self._compared(node, scope, [node.this, *node.expressions])

    def _condition(self, node: Any, scope: NameScope) -> SqlType:
        for name in ("this", "expression"):
            part = node.args.get(name)
            if part is None:
                continue
            kind = self.type_of(part, scope)
            try:
                condition(kind)
            except TypeMismatchError:
                self._mismatch(part, f"expected a condition, and this is {kind}")
        return BOOLEAN

    def _test(self, node: Any, scope: NameScope) -> SqlType:
        self.visit(node, scope)
        return BOOLEAN

    def _joined(self, node: Any, scope: NameScope) -> SqlType:
        return join_texts(self.type_of(node.this, scope), self.type_of(node.expression, scope))

    def _case(self, node: Any, scope: NameScope) -> SqlType:
        if node.args.get("this") is not None:
            self.type_of(node.this, scope)
        values = []
        for branch in node.args["ifs"]:
            self.type_of(branch.this, scope)
            values.append(self.type_of(branch.args["true"], scope))
        if (default := node.args.get("default")) is not None:
            values.append(self.type_of(default, scope))
        return common(values)

    def _extract(self, node: Any, scope: NameScope) -> SqlType:
        kind = self.type_of(node.expression, scope)
        is_part = str(node.this.name).upper().rstrip("S") not in ("SECOND", "MILLISECOND", "MICROSECOND")
        return INT if is_part and kind.kind in TIMES else UNKNOWN

    def _trim(self, node: Any, scope: NameScope) -> SqlType:
        self.visit(node, scope)
        return STRING

    def _scalar_query(self, node: Any, scope: NameScope) -> SqlType:
        relation = self.subquery(node.this, scope)
        return relation.columns[0].type if relation.complete and len(relation.columns) == 1 else UNKNOWN

    def _exists(self, node: Any, scope: NameScope) -> SqlType:
        self.subquery(node.this, scope)
        return BOOLEAN

    def _window(self, node: Any, scope: NameScope) -> SqlType:
        kind = self.type_of(node.this, scope)
        for name in ("partition_by", "order", "spec"):
            part = node.args.get(name)
            for item in part if isinstance(part, list) else [part] if part is not None else []:
                self.type_of(item, scope)
        return kind

    def _with_more(self, node: Any, scope: NameScope) -> SqlType:
        """An aggregate with FILTER or WITHIN GROUP behind it."""
        kind = self.type_of(node.this, scope)
        self.type_of(node.expression, scope)
        return kind

    # --- calls

    def _call(self, node: Any, scope: NameScope) -> SqlType:
        name = str(node.this).lower()
        arguments = [
            item
            for argument in node.expressions
            for item in (argument.expressions if isinstance(argument, exp.Distinct) else [argument])
        ]
        if name in ("struct", "named_struct"):
            return self._struct(name, arguments, scope)
        if any(isinstance(item, exp.Lambda) for item in arguments):
            return self._with_lambda(name, arguments, scope)
        if name in _WITH_UNIT and len(arguments) == 3:
            arguments, rest = arguments[1:], arguments[0]
            types = [UNKNOWN, *(self.type_of(item, scope) for item in arguments)]
            del rest  # a unit, which looks like a column
        else:
            types = [self.type_of(item, scope) for item in arguments if not _is_star(item)]
        if expected := check_arguments(name, types):
            wrong = next(kind for kind in types if kind.is_known) if name != "date_trunc" else types[1]
            hint = "CAST it, or use another column."
            if expected.startswith("a date") and wrong.kind in ("bigint", "int", "decimal"):
                hint = "Seconds since 1970 become a timestamp by `timestamp_seconds(...)`."
            self.report("type_mismatch", f"{name} takes {expected}, not {wrong}", arguments[-1], hint)
            return UNKNOWN
        return call_type(name, types)

    def _struct(self, function: str, arguments: Sequence[Any], scope: NameScope) -> SqlType:
        names: list[str | None] = []
        types: list[SqlType] = []
        if function == "named_struct":
            names = [plain_text(item) for item in arguments[::2]]
            types = [self.type_of(item, scope) for item in arguments[1::2]]
        else:
            for place, item in enumerate(arguments, 1):
                if _is_star(item):
                    names.append(None)
                    continue
                value = item.this if isinstance(item, exp.Alias) else item
                is_named = isinstance(item, exp.Alias | exp.Column)
                names.append(item.alias_or_name if is_named else f"col{place}")
                types.append(self.type_of(value, scope))
        field_names = [name for name in names if name]
        if len(field_names) != len(names) or not field_names or len(field_names) != len(types):
            return UNKNOWN
        return SqlType("struct", items=tuple(types), names=tuple(field_names))

    def _with_lambda(self, name: str, arguments: Sequence[Any], scope: NameScope) -> SqlType:
        types = [self.type_of(item, scope) for item in arguments if not isinstance(item, exp.Lambda)]
        whole = types[0] if types else UNKNOWN
        bodies = []
        for item in arguments:
            if isinstance(item, exp.Lambda):
                names = [str(variable.this).lower() for variable in item.expressions]
                kinds: list[SqlType] = [UNKNOWN] * len(names)
                if name in ("transform", "filter", "exists", "forall") and whole.kind == "array":
                    kinds = [whole.items[0], INT][: len(names)]
                variables = dict(zip(names, kinds, strict=False))
                bodies.append(self.type_of(item.this, scope.with_variables(variables)))
        if name == "transform":
            return array(bodies[0]) if bodies[0].is_known else UNKNOWN
        return call_type(name, [whole]) if name in ("filter", "exists", "forall") else UNKNOWN


_WITH_UNIT = frozenset(["date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff"])


def _is_star(node: Any) -> bool:
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def number_type(text: str, *, negative: bool = False) -> SqlType:
    """The type that Spark gives a number as it is written. There is one more negative number of each type."""
    if "e" in text.lower():
        return DOUBLE
    whole, point, fraction = text.partition(".")
    if not point:
        value = int(whole) - negative
        return INT if value < 2**31 else BIGINT if value < 2**63 else decimal(len(str(int(whole))), 0)
    digits = (whole + fraction).lstrip("0")
    return decimal(max(len(digits), len(fraction), 1), len(fraction))


def _literal_decimal(node: Any, kind: SqlType) -> SqlType:
    """Next to a decimal, a whole number in the text has as many digits as are written."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Literal) and kind in (INT, BIGINT):
        return decimal(len(str(int(node.this))), 0)
    if isinstance(node, exp.Neg):
        return UNKNOWN if isinstance(node.this, exp.Literal) else kind
    is_number = isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and not node.this.is_string
    return UNKNOWN if is_number else kind  # `5L`


def data_type(node: Any) -> SqlType:
    """The type that a CAST names."""
    kind = node.this.name if isinstance(node.this, exp.DType) else ""
    if kind == "DECIMAL":
        digits = [int(str(item.this.this)) for item in node.expressions]
        precision, scale = [*digits, *(10, 0)[len(digits) :]]
        return decimal(precision, scale)
    if kind in ("ARRAY", "MAP"):
        return SqlType(kind.lower(), items=tuple(data_type(item) for item in node.expressions))
    if kind == "STRUCT":
        names = tuple(str(item.this.this) for item in node.expressions)
        return SqlType("struct", items=tuple(data_type(item.args["kind"]) for item in node.expressions), names=names)
    return parse_type(_TYPE_NAMES.get(kind, kind.lower()))


_Rule = Callable[[ExpressionTypes, Any, NameScope], SqlType]
_RULES: Mapping[type[Any], _Rule] = {
    exp.Column: ExpressionTypes._column,
    exp.Dot: ExpressionTypes._dot,
    exp.Bracket: ExpressionTypes._bracket,
    exp.Literal: ExpressionTypes._literal,
    exp.HexString: lambda *_: BINARY,
    exp.Boolean: lambda *_: BOOLEAN,
    exp.Null: lambda *_: UNKNOWN,
    exp.Interval: lambda *_: UNKNOWN,
    exp.Placeholder: ExpressionTypes._placeholder,
    exp.Paren: ExpressionTypes._same,
    exp.Neg: ExpressionTypes._negated,
    exp.BitwiseNot: ExpressionTypes._inverted,
    exp.Cast: ExpressionTypes._cast,
    exp.TryCast: ExpressionTypes._cast,
    exp.BitwiseAnd: ExpressionTypes._bitwise,
    exp.BitwiseOr: ExpressionTypes._bitwise,
    exp.BitwiseXor: ExpressionTypes._bitwise,
    exp.Between: ExpressionTypes._between,
    exp.In: ExpressionTypes._in,
    exp.And: ExpressionTypes._condition,
    exp.Or: ExpressionTypes._condition,
    exp.Not: ExpressionTypes._condition,
    exp.Is: ExpressionTypes._test,
    exp.Like: ExpressionTypes._test,
    exp.ILike: ExpressionTypes._test,
    exp.RegexpLike: ExpressionTypes._test,
    exp.Escape: ExpressionTypes._test,
    exp.DPipe: ExpressionTypes._joined,
    exp.Case: ExpressionTypes._case,
    exp.Extract: ExpressionTypes._extract,
    exp.Trim: ExpressionTypes._trim,
    exp.Subquery: ExpressionTypes._scalar_query,
    exp.Exists: ExpressionTypes._exists,
    exp.Window: ExpressionTypes._window,
    exp.Filter: ExpressionTypes._with_more,
    exp.WithinGroup: ExpressionTypes._with_more,
    exp.IgnoreNulls: ExpressionTypes._same,
    exp.RespectNulls: ExpressionTypes._same,
    exp.Anonymous: ExpressionTypes._call,
}
