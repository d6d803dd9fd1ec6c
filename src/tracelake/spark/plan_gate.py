"""The second gate for SQL from a DAG: what Spark itself understood, before anything of it runs.

The first gate (`catalogue.sql.gate`) wrote the text. Here Spark's own parser reads it, and its tree may hold only known
kinds of nodes, functions of the list, our views and the query's own common table expressions; then the same again for
the analysed plan, where every leaf must be one of our views or rows that stand in the query.

A schema in a text can name a user-defined type, a class that Python imports as soon as it looks at the schema of the
frame. So texts that Spark parses have to be literals in its tree too, schemas are read again by our own grammar, and
the types of the result are looked at in Java, as JSON, before anything asks for `frame.schema`.

Both look into the Java process beside Python. Over Spark Connect there is none: there the first gate stands alone, and
the server's own permissions behind it.
"""

import json
import threading
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.context import NonRetryableError
from tracelake.catalogue.sql.functions.kinds import Form
from tracelake.catalogue.sql.functions.signatures import SIGNATURES
from tracelake.catalogue.sql.literals.errors import LiteralError
from tracelake.spark.plan_joins import unconnected_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLANS = _names(
    """
    Aggregate CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit Intersect Join
    LateralJoin LocalLimit LocalRelation Offset OneRowRelation Project Sort SubqueryAlias Union Window WithCTE
    """
)
_PARSED_PLANS = _PLANS | _names(
    """
    ResolvedInlineTable UnresolvedHaving UnresolvedInlineTable UnresolvedRelation
    UnresolvedSubqueryColumnAliases UnresolvedWith WithWindowDefinition
    """
)
_SUBQUERIES = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
_EXPRESSIONS = _names(
    """
    Add Alias And AttributeReference BaseGroupingSets BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast
    Concat CreateNamedStruct CreateStruct Cube CurrentRow Divide EqualNullSafe EqualTo Exists Extract
    GreaterThan GreaterThanOrEqual GroupingSets ILike If In InSubquery IntegralDivide IsNotNull IsNull
    LambdaFunction LateralSubquery LessThan LessThanOrEqual Like ListQuery Literal MultiAlias Multiply
    NamePlaceholder NamedParameter Not Or RLike Remainder Rollup ScalarSubquery SortOrder SpecifiedWindowFrame
    StringTrim StringTrimBoth StringTrimLeft StringTrimRight Subtract TimestampAdd TimestampDiff UnaryMinus
    UnaryPositive UnboundedFollowing UnboundedPreceding UnresolvedAlias UnresolvedAttribute
    UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator UnresolvedNamedLambdaVariable
    UnresolvedOrdinal UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedStarWithColumns
    UnresolvedWindowExpression UnspecifiedFrame WindowExpression WindowSpecDefinition
    """
)
"""Of a tree that was only parsed. A function is still a name there, so this list is short."""

_OPERATIONS = frozenset({"between"})
"""What Spark's parser writes as a call although it is none."""

_EXPRESSION_PACKAGE = "org.apache.spark.sql.catalyst.expressions."
_FORBIDDEN_WORDS = ("Reflection", "Reflect", "UDF", "UserDefined", "Aggregator", "InputFile", "CurrentUser", "Version")
_FORBIDDEN = _names(
    """
    AssertTrue CurrentCatalog CurrentDatabase CurrentDate CurrentSchema CurrentTime CurrentTimeZone
    CurrentTimestamp LocalTimestamp MonotonicallyIncreasingID Now Rand Randn RandStr Shuffle SparkPartitionID
    Uniform Uuid VariableReference
    """
)

_JOINED = frozenset({"Filter", "Join"})
_TYPED_BY_TEXT = frozenset({"JsonToStructs", "VariantGet"})
"""What has its type from a text of the query."""


_ROW_BY_ROW = frozenset({"CTERelationDef", "CTERelationRef", "Filter", "Project", "SubqueryAlias", "View", "WithCTE"})
_MOST_PASSED = 1_024


class PlanRefusedError(NonRetryableError):
    """Spark understood something that queries may not do."""


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What a look at an analysed plan says of the query."""

    row_by_row: bool = False
    """Each row is made of one row of the one input, so that rows come in the order of the input."""


class PassedQueries:
    """Queries that passed both checks, by all that decides what Spark makes of them. A look at a node of a plan is a
    round trip to Java, and a job runs the same query for each of its units."""

    def __init__(self) -> None:
        self._facts: dict[Hashable, PlanFacts] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> PlanFacts | None:
        return self._facts.get(key)

    def add(self, key: Hashable, facts: PlanFacts) -> None:
        with self._lock:
            self._facts[key] = facts
            if len(self._facts) > _MOST_PASSED:
                del self._facts[next(iter(self._facts))]


def check_parsed(session: "SparkSession", sql: str, views: Collection[str]) -> None:
    """Spark's parser alone: nothing is looked up, nothing runs."""
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return
    relations: set[str] = set()
    ctes: set[str] = set()
    for kind, name, node, _ in _walk(java.sessionState().sqlParser().parsePlan(sql), frozenset()):
        if kind == "plan" and name not in _PARSED_PLANS:
            raise PlanRefusedError(f"queries may not use {name}")
        if kind == "expression" and name not in _EXPRESSIONS:
            raise PlanRefusedError(f"queries may not use {name}")
        if name == "UnresolvedRelation":
            relations.add(".".join(_items(node.multipartIdentifier())))
        elif name == "UnresolvedWith":
            ctes.update(alias.alias() for alias in _items(node.innerChildren()))
        elif name == "UnresolvedFunction":
            _check_function(list(_items(node.nameParts())))
            _check_literals(str(node.nameParts().head()).lower(), list(_items(node.arguments())))
        elif name == "UnresolvedGenerator":
            _check_function([node.name().funcName()])
    if strange := relations - ctes - set(views):
        raise PlanRefusedError(f"queries may not read {min(strange)}")


def _check_function(parts: list[str]) -> None:
    if len(parts) != 1 or parts[0].lower() not in SIGNATURES.keys() | _OPERATIONS:
        raise PlanRefusedError(f"queries may not call {'.'.join(parts)}")


def _check_literals(name: str, arguments: list[Any]) -> None:
    """What Spark parses by itself is a text in its tree, and schemas are of our own grammar."""
    forms = [signature.kinds_of(len(arguments)) for signature in SIGNATURES.get(name, ())]
    for kind, argument in zip(next((form for form in forms if form is not None), ()), arguments, strict=False):
        if kind.form is not Form.TEXT:
            continue
        if argument.getClass().getSimpleName() != "Literal":
            raise PlanRefusedError(f"queries may not compute the {kind.name} of {name}")
        if kind.name in ("schema", "type") and kind.check is not None:
            try:
                kind.check(str(argument.toString()))
            except LiteralError as error:
                raise PlanRefusedError(f"queries may not call {name} with this {kind.name}: {error}") from None


def check_analysed(frame: "DataFrame", views: Collection[str]) -> PlanFacts:
    """What the names turned out to be. What is behind our views was there before the query."""
    java = getattr(frame, "_jdf", None)
    if java is None:
        return PlanFacts()
    plans: list[str] = []
    plan = java.queryExecution().analyzed()
    _check_type(plan.schema())
    for kind, name, node, above in _walk(plan, frozenset({"View"})):
        plans += [name] if kind == "plan" else []
        # A join is looked at together with the filters right above it and the joins right below.
        if kind == "plan" and name in _JOINED and above not in _JOINED and unconnected_join(node):
            raise PlanRefusedError("queries may not join relations without an equality, unless one is small")
        if name == "View":
            view = node.desc().identifier()
            if not node.isTempView() or view.database().isDefined() or view.table() not in views:
                raise PlanRefusedError("queries may not read views of others")
        elif kind == "plan" and name not in _PLANS:
            raise PlanRefusedError(f"queries may not use {name}")
        elif kind == "expression":
            outside = not node.getClass().getName().startswith(_EXPRESSION_PACKAGE)
            if outside or name in _FORBIDDEN or any(word in name for word in _FORBIDDEN_WORDS):
                raise PlanRefusedError(f"queries may not use {name}")
            if name in _TYPED_BY_TEXT:
                _check_type(node.dataType())
    return PlanFacts(plans.count("View") == 1 and _ROW_BY_ROW.issuperset(plans))


def _check_type(java_type: Any) -> None:
    """As JSON, in which a type is a text or an object with its name in `type`. Nothing is loaded by reading it."""
    waiting: list[Any] = [json.loads(java_type.json())]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            if item.get("type") == "udt":
                raise PlanRefusedError("queries may not use types that name a class")
            waiting += [value for key, value in item.items() if key != "metadata"]


def _walk(root: Any, leaves: frozenset[str]) -> Iterator[tuple[str, str, Any, str]]:
    """Every node of a plan with its expressions, and of the plans in those; each with the name of what is above it."""
    waiting: list[tuple[str, Any, str]] = [("plan", root, "")]
    while waiting:
        kind, node, above = waiting.pop()
        name = str(node.getClass().getSimpleName()).removesuffix("$")
        yield kind, name, node, above
        if name in leaves:
            continue
        waiting += [(kind, child, name) for child in _items(node.children())]
        if kind == "plan":
            waiting += [("expression", item, name) for item in _items(node.expressions())]
            if name == "UnresolvedWith":
                waiting += [("plan", item, name) for item in _items(node.innerChildren())]
        elif name in _SUBQUERIES:
            waiting.append(("plan", node.plan(), name))


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
