"""Relations and their columns, and how a name finds its column: by the rules of Spark, whatever its case."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tracelake.catalogue.sql.columns.types import UNKNOWN, SqlType

MAX_COLUMNS = 5_000
"""A relation with more columns counts as unknown."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str | None
    """None: Spark makes up a name."""
    type: SqlType = UNKNOWN


@dataclass(frozen=True, slots=True)
class SqlRelation:
    columns: tuple[RelationColumn, ...] = ()
    complete: bool = True
    """False: there may be other columns, in other places too."""

    def renamed(self, names: Sequence[str]) -> "SqlRelation":
        """With the names of an alias; types are kept if there is one name for each column."""
        if not names:
            return self
        fits = self.complete and len(names) == len(self.columns)
        types = [column.type for column in self.columns] if fits else [UNKNOWN] * len(names)
        return SqlRelation(tuple(map(RelationColumn, names, types)))

    @property
    def names_are_known(self) -> bool:
        return self.complete and all(column.name is not None for column in self.columns)


UNKNOWN_RELATION = SqlRelation(complete=False)


@dataclass(frozen=True, slots=True)
class ScopeColumn:
    qualifier: str
    """The relation's name in lower case; empty if it has none."""
    name: str | None
    type: SqlType

    @property
    def folded(self) -> str | None:
        return None if self.name is None else self.name.lower()


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a name stands for."""

    outcome: Literal["found", "ambiguous", "missing", "uncertain"]
    type: SqlType = UNKNOWN
    owners: tuple[str, ...] = ()
    """Of an ambiguous name: relations that have it."""


UNCERTAIN = Lookup("uncertain")
MISSING = Lookup("missing")


@dataclass(slots=True)
class NameScope:
    """The columns that a name can stand for in one SELECT, and in those around it."""

    columns: list[ScopeColumn] = field(default_factory=list)
    hidden: list[ScopeColumn] = field(default_factory=list)
    """Columns that only a qualified name reaches: those that USING merged."""
    aliases: dict[str, SqlType] = field(default_factory=dict)
    """Columns of the result by their names in lower case, which other parts of a SELECT may name."""
    prefers_aliases: bool = False
    """Names of the result come before those of the relations, as in ORDER BY."""
    variables: Mapping[str, SqlType] = field(default_factory=dict)
    """Of lambdas, by their names in lower case."""
    open_relations: set[str] = field(default_factory=set)
    """Names of relations whose columns are not all known."""
    outer: "NameScope | None" = None
    _index: dict[str, list[ScopeColumn]] | None = None

    def add(self, qualifier: str, relation: SqlRelation) -> None:
        self.columns += [ScopeColumn(qualifier.lower(), item.name, item.type) for item in relation.columns]
        if not relation.names_are_known or len(self.columns) > MAX_COLUMNS:
            self.open_relations.add(qualifier.lower())
        self._index = None

    def part(self, columns: Iterable[ScopeColumn]) -> "NameScope":
        """The same, with these columns alone."""
        scope = NameScope(list(columns), list(self.hidden), outer=self.outer, open_relations=set(self.open_relations))
        scope.variables = self.variables
        return scope

    def with_aliases(self, aliases: dict[str, SqlType], *, prefers_aliases: bool) -> "NameScope":
        return NameScope(
            self.columns, self.hidden, aliases, prefers_aliases, self.variables, self.open_relations, self.outer
        )

    def with_variables(self, variables: Mapping[str, SqlType]) -> "NameScope":
        names = {**self.variables, **variables}
        return NameScope(
            self.columns, self.hidden, self.aliases, self.prefers_aliases, names, self.open_relations, self.outer
        )

    def find(self, parts: Sequence[str]) -> Lookup:
        """Find `column`, `relation.column`, or a field of one of them: `relation.column.field`."""
        words = [part.lower() for part in parts]
        if words[0] in self.variables:
            return Lookup("found", _field(self.variables[words[0]], words[1:]))
        if self.prefers_aliases and words[0] in self.aliases:
            return Lookup("found", _field(self.aliases[words[0]], words[1:]))
        answer = self._find_here(words)
        if answer.outcome == "missing" and words[0] in self.aliases:
            return Lookup("found", _field(self.aliases[words[0]], words[1:]))
        if answer.outcome == "ambiguous" and words[0] in self.aliases:
            return UNCERTAIN
        if answer.outcome != "missing" or self.outer is None:
            return answer
        beyond = self.outer.find(parts)
        return UNCERTAIN if beyond.outcome == "ambiguous" else beyond

    def _find_here(self, words: list[str]) -> Lookup:
        if len(words) > 1:
            owned = [item for item in self._named(words[1]) if item.qualifier == words[0]]
            if not owned:
                owned = [item for item in self.hidden if (item.qualifier, item.folded) == (words[0], words[1])]
            if owned:
                return _chosen(owned, words[2:])
            if words[0] in self.open_relations:
                return UNCERTAIN
        columns = self._named(words[0])
        if len(columns) > 1:
            return _chosen(columns, words[1:])
        if self.open_relations:  # one of them may have it as well
            return UNCERTAIN
        return _chosen(columns, words[1:]) if columns else MISSING

    def _named(self, name: str) -> list[ScopeColumn]:
        if self._index is None:
            self._index = {}
            for item in self.columns:
                if item.folded is not None:
                    self._index.setdefault(item.folded, []).append(item)
        return self._index.get(name, [])

    def names(self, qualifier: str = "") -> Iterator[str]:
        """Names that could have been meant."""
        for item in self.columns:
            if item.name is not None and (not qualifier or item.qualifier == qualifier):
                yield item.name
        if not qualifier and self.outer is not None:
            yield from self.outer.names()

    def has_relation(self, qualifier: str) -> bool:
        owners = (item.qualifier for columns in (self.columns, self.hidden) for item in columns)
        return qualifier in self.open_relations or qualifier in owners


def _chosen(columns: list[ScopeColumn], fields: list[str]) -> Lookup:
    if len(columns) > 1:
        owners = tuple(dict.fromkeys(item.qualifier for item in columns))
        return Lookup("ambiguous", owners=owners)
    return Lookup("found", _field(columns[0].type, fields))


def _field(kind: SqlType, names: Sequence[str]) -> SqlType:
    """The type of a field; UNKNOWN if there is no such field for certain, which Spark then says."""
    for name in names:
        matching = [item for field, item in zip(kind.names, kind.items, strict=False) if field.lower() == name]
        if kind.kind != "struct" or len(matching) != 1:
            return UNKNOWN
        kind = matching[0]
    return kind


def field_type(kind: SqlType, name: str) -> SqlType:
    return _field(kind, [name.lower()])
