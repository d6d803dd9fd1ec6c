"""The columns of a query, from those of the relations that it reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql.columns.expressions import AnalysisLimitError, ColumnFinding, ExpressionTypes
from tracelake.catalogue.sql.columns.functions import generated
from tracelake.catalogue.sql.columns.operators import common
from tracelake.catalogue.sql.columns.scopes import (
    MAX_COLUMNS,
    UNKNOWN_RELATION,
    NameScope,
    RelationColumn,
    ScopeColumn,
    SqlRelation,
)
from tracelake.catalogue.sql.columns.types import UNKNOWN, SqlType
from tracelake.catalogue.sql.functions.signatures import GENERATORS
from tracelake.catalogue.sql.writer import COMMA

_ONE_SIDED = ("SEMI", "ANTI")


@dataclass(frozen=True, slots=True)
class QueryColumns:
    relation: SqlRelation
    findings: tuple[ColumnFinding, ...] = ()


def analyse_tree(text: str, tree: Any, inputs: Mapping[str, SqlRelation]) -> QueryColumns:
    """The columns of a query that passed the gate. `inputs` are relations by their names in lower case; others are
    unknown. What costs too much has unknown columns and no findings."""
    analysis = _QueryAnalysis(text, inputs=inputs)
    try:
        relation = analysis.query(tree, {}, None)
    except (AnalysisLimitError, RecursionError):
        return QueryColumns(UNKNOWN_RELATION)
    return QueryColumns(relation, tuple(sorted(analysis.findings, key=lambda finding: finding.offset)))


_Ctes = dict[str, SqlRelation]


@dataclass(slots=True)
class _From:
    """The columns that a FROM has so far."""

    scope: NameScope
    group: int = 0
    """Where the columns begin that are joined with each other since the last comma."""


@dataclass(slots=True)
class _QueryAnalysis(ExpressionTypes):
    inputs: Mapping[str, SqlRelation] = field(default_factory=dict)
    _ctes: list[_Ctes] = field(default_factory=list)

    def subquery(self, node: Any, scope: NameScope) -> SqlRelation:
        return self.query(node, self._ctes[-1] if self._ctes else {}, scope)

    def query(self, node: Any, ctes: _Ctes, outer: NameScope | None) -> SqlRelation:
        self.spend()
        while isinstance(node, exp.Subquery):
            node = node.this
        visible_ctes = dict(ctes)
        self._ctes.append(visible_ctes)
        try:
            for cte in node.args["with_"].expressions if node.args.get("with_") is not None else ():
                alias = cte.args["alias"]
                visible_ctes[str(alias.this.this).lower()] = self.query(cte.this, visible_ctes, outer).renamed(
                    _names(alias)
                )
            if isinstance(node, exp.SetOperation):
                return self._set(node, visible_ctes, outer)
            return self._select(node, visible_ctes, outer)
        finally:
            self._ctes.pop()

    def _set(self, node: Any, ctes: _Ctes, outer: NameScope | None) -> SqlRelation:
        left, right = self.query(node.this, ctes, outer), self.query(node.expression, ctes, outer)
        relation = left
        if left.complete and right.complete:
            if len(left.columns) != len(right.columns):
                word = type(node).__name__.upper()
                message = f"the parts of {word} have {len(left.columns)} and {len(right.columns)} columns"
                self.report("type_mismatch", message, node.expression, "Select the same columns in both.")
                return UNKNOWN_RELATION
            pairs = zip(left.columns, right.columns, strict=True)
            relation = SqlRelation(tuple(RelationColumn(one.name, common((one.type, two.type))) for one, two in pairs))
        else:
            relation = SqlRelation(tuple(RelationColumn(column.name) for column in left.columns), left.complete)
        self._order(node, relation, NameScope(outer=outer))
        return relation

    def _select(self, node: Any, ctes: _Ctes, outer: NameScope | None) -> SqlRelation:
        earlier = len(self.findings)
        relation = self._select_items(node, ctes, outer)
        self.findings[earlier:] = _first_of_each(self.findings[earlier:])
        return relation

    def _select_items(self, node: Any, ctes: _Ctes, outer: NameScope | None) -> SqlRelation:
        joined = _From(NameScope(outer=outer))
        if (source := node.args.get("from_")) is not None:
            self._add(source.this, joined, ctes)
        for join in node.args.get("joins") or []:
            self._join(join, joined, ctes)
        for lateral in node.args.get("laterals") or []:
            self._lateral_view(lateral, joined.scope)
        scope = joined.scope
        self.spend(len(scope.columns))
        if (where := node.args.get("where")) is not None:
            self._condition_of(where.this, scope)
        relation = self._items(node, scope)
        aliases = {column.name.lower(): column.type for column in relation.columns if column.name is not None}
        alias_scope = scope.with_aliases(aliases, prefers_aliases=False)
        for name in ("group", "having", "windows"):
            part = node.args.get(name)
            for item in part if isinstance(part, list) else [part] if part is not None else []:
                self.type_of(item, alias_scope)
        self._order(node, relation, scope)
        return relation

    def _condition_of(self, node: Any, scope: NameScope) -> None:
        kind = self.type_of(node, scope)
        if kind.kind in ("tinyint", "smallint", "int", "bigint", "double", "decimal", "binary", "date", "timestamp"):
            self.report("type_mismatch", f"WHERE takes a condition, and this is {kind}", node)

    def _order(self, node: Any, relation: SqlRelation, scope: NameScope) -> None:
        if (order := node.args.get("order")) is None:
            return
        aliases = {column.name.lower(): column.type for column in relation.columns if column.name is not None}
        alias_scope = scope.with_aliases(aliases, prefers_aliases=True)
        if not relation.names_are_known:
            alias_scope.open_relations = {*alias_scope.open_relations, ""}
        self.type_of(order, alias_scope)

    # --- columns of the result

    def _items(self, node: Any, scope: NameScope) -> SqlRelation:
        columns: list[RelationColumn] = []
        complete = True
        aliases: dict[str, SqlType] = {}
        item_scope = scope.with_aliases(aliases, prefers_aliases=False)
        for item in node.expressions:
            if _is_star(item):
                expanded = self._star(item, scope)
                complete = complete and expanded is not None
                columns += expanded or ()
                self.spend(len(expanded or ()))
            else:
                made_columns = self._item(item, item_scope)
                # A misspelled column hands its misspelled name on: what it was meant to be is not known.
                is_misspelled = isinstance(item, exp.Column) and _is_missing(item, item_scope)
                complete = complete and made_columns is not None and not is_misspelled
                columns += made_columns or ()
                for column in made_columns or ():
                    if column.name is not None and isinstance(item, exp.Alias | exp.Aliases):
                        name = column.name.lower()
                        aliases[name] = UNKNOWN if name in aliases else column.type
            if len(columns) > MAX_COLUMNS:
                return UNKNOWN_RELATION
        return SqlRelation(tuple(columns), complete)

    def _item(self, item: Any, scope: NameScope) -> list[RelationColumn] | None:
        """None: it is not known how many columns it makes, or what they are called."""
        value = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
        if isinstance(value, exp.Anonymous) and str(value.this).lower() in GENERATORS:
            columns = self._generated(value, scope)
            if isinstance(item, exp.Alias):
                return [RelationColumn(item.alias, columns[0][1] if columns and len(columns) == 1 else UNKNOWN)]
            if isinstance(item, exp.Aliases):
                return _named([str(name.this) for name in item.expressions], columns)
            return None if columns is None else [RelationColumn(name, kind) for name, kind in columns]
        kind = self.type_of(value, scope)
        if isinstance(item, exp.Alias):
            return [RelationColumn(item.alias, kind)]
        if isinstance(item, exp.Column):
            return [RelationColumn(str(item.this.this), kind)]
        if isinstance(item, exp.Dot) and isinstance(item.expression, exp.Identifier):
            return [RelationColumn(str(item.expression.this), kind)]
        return [RelationColumn(None, kind)]

    def _star(self, item: Any, scope: NameScope) -> list[RelationColumn] | None:
        star = item if isinstance(item, exp.Star) else item.this
        columns: Iterable[tuple[str | None, SqlType]]
        if star is item:
            if scope.open_relations:
                return None
            columns = ((column.name, column.type) for column in scope.columns)
        else:
            parts = [str(part.this).lower() for part in item.parts[:-1]]
            owned = [column for column in scope.columns if column.qualifier == parts[0]]
            if (
                len(parts) > 1
                or parts[0] in scope.open_relations
                or any(column.qualifier == parts[0] for column in scope.hidden)
            ):
                return None
            if owned:
                columns = ((column.name, column.type) for column in owned)
            else:
                kind = self.type_of(exp.Column(this=item.parts[0].copy()), scope)
                if kind.kind != "struct":
                    return None
                columns = zip(kind.names, kind.items, strict=True)
        expanded = [RelationColumn(name, kind) for name, kind in columns]
        left_out = [str(name.name).lower() for name in star.args.get("except_") or []]
        names = [column.name.lower() if column.name else None for column in expanded]
        if any(name not in names for name in left_out):
            return None
        return [column for column, name in zip(expanded, names, strict=True) if name not in left_out]

    # --- relations

    def _relation(self, node: Any, joined: _From, ctes: _Ctes) -> tuple[str, SqlRelation]:
        """Its name, or an empty text, and its columns."""
        alias = node.args.get("alias")
        name = str(alias.this.this) if alias is not None and alias.this is not None else ""
        if isinstance(node, exp.Table):
            table = node.name.lower()
            relation = ctes.get(table) or self.inputs.get(table) or UNKNOWN_RELATION
            name = name or node.name
        elif isinstance(node, exp.Values):
            relation = self._values(node, joined.scope)
        elif isinstance(node, exp.Lateral):
            relation = self.query(node.this, ctes, joined.scope)
        else:
            relation = self.query(node.this, ctes, joined.scope.outer)
        return name, relation if alias is None else relation.renamed(_names(alias))

    def _add(self, node: Any, joined: _From, ctes: _Ctes) -> None:
        name, relation = self._relation(node, joined, ctes)
        self.spend(len(relation.columns))
        joined.scope.add(name, relation)

    def _values(self, node: Any, scope: NameScope) -> SqlRelation:
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
        types = [[self.type_of(item, scope) for item in row] for row in rows]
        if len({len(row) for row in types}) != 1:
            return UNKNOWN_RELATION
        columns = (common(items) for items in zip(*types, strict=True))
        return SqlRelation(tuple(RelationColumn(f"col{index}", kind) for index, kind in enumerate(columns, 1)))

    def _join(self, join: Any, joined: _From, ctes: _Ctes) -> None:
        if COMMA in join.meta:
            joined.group = len(joined.scope.columns)
        start = len(joined.scope.columns)
        self._add(join.this, joined, ctes)
        scope = joined.scope
        if (on := join.args.get("on")) is not None:
            self.type_of(on, scope.part(scope.columns[joined.group :]))
        using = [str(name.name) for name in join.args.get("using") or []]
        kind = str(join.args.get("kind") or "").upper()
        if using or str(join.args.get("method") or "").upper() == "NATURAL":
            self._merge(join, scope, joined.group, start, [name.lower() for name in using])
        if kind in _ONE_SIDED and not using:
            scope.columns = scope.columns[:start]
            scope._index = None

    def _merge(self, join: Any, scope: NameScope, group: int, start: int, using: list[str]) -> None:
        """One column in place of two, as USING and NATURAL do it. What may be hidden is not certain."""
        before, left, right = scope.columns[:group], scope.columns[group:start], scope.columns[start:]
        side = str(join.args.get("side") or "").upper()
        is_one_sided = str(join.args.get("kind") or "").upper() in _ONE_SIDED
        others = {item.folded for item in right}
        names = using or [item.folded for item in left if item.folded is not None and item.folded in others]
        keys: list[ScopeColumn] = []
        for name in names:
            one = [item for item in left if item.folded == name]
            two = [item for item in right if item.folded == name]
            if len(one) != 1 or len(two) != 1 or scope.open_relations:
                scope.open_relations.add("")  # Spark knows more about it, or refuses it
                continue
            if side == "FULL":
                keys.append(ScopeColumn("", one[0].name, common((one[0].type, two[0].type))))
                scope.hidden += [*one, *two]
            else:
                key, merged = (two[0], one[0]) if side == "RIGHT" else (one[0], two[0])
                keys.append(key)
                scope.hidden.append(merged)
        rest = [item for item in left if item.folded not in names]
        rest += [] if is_one_sided else [item for item in right if item.folded not in names]
        scope.columns = [*before, *keys, *rest]
        scope._index = None

    def _lateral_view(self, node: Any, scope: NameScope) -> None:
        columns = self._generated(node.this, scope)
        alias = node.args["alias"]
        names = _names(alias)
        if names:
            relation = SqlRelation(tuple(_named(names, columns) or ()))
        elif columns is None:
            relation = UNKNOWN_RELATION
        else:
            relation = SqlRelation(tuple(RelationColumn(name, kind) for name, kind in columns))
        scope.add(str(alias.this.this), relation)

    def _generated(self, call: Any, scope: NameScope) -> tuple[tuple[str, SqlType], ...] | None:
        return generated(str(call.this).lower(), [self.type_of(item, scope) for item in call.expressions])


def _first_of_each(findings: Iterable[ColumnFinding]) -> list[ColumnFinding]:
    """The findings without repeated ones: a name that is wrong in five places is one mistake, in the first of them."""
    first: dict[object, ColumnFinding] = {}
    for finding in sorted(findings, key=lambda item: item.offset):
        is_name = finding.code == "unknown_column"
        first.setdefault(finding.message if is_name else finding, finding)
    return list(first.values())


def _is_missing(column: Any, scope: NameScope) -> bool:
    """Whether a name certainly stands for nothing."""
    return scope.find([str(part.this) for part in column.parts]).outcome == "missing"


def _named(names: list[str], columns: tuple[tuple[str, SqlType], ...] | None) -> list[RelationColumn]:
    """Columns of a generator with the names of an alias."""
    fits = columns is not None and len(columns) == len(names)
    return [
        RelationColumn(name, columns[index][1] if fits and columns else UNKNOWN) for index, name in enumerate(names)
    ]


def _names(alias: Any) -> list[str]:
    return [str(column.name) for column in alias.args.get("columns") or []]


def _is_star(node: Any) -> bool:
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))
