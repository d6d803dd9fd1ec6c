"""Writes windows, their frames, and the order of rows."""

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql_calls import CallWriter
from tracelake.catalogue.sql_findings import shown


@dataclass(slots=True)
class WindowWriter(CallWriter):
    def _window(self, node: Any) -> str:
        if str(node.args.get("over")).upper() != "OVER":
            self._unknown(node)
        return f"{self.expression(node.this)} OVER {self._window_spec(node)}"

    def _window_spec(self, node: Any) -> str:
        """The name of a window, or a definition in brackets. Spark has no definition that begins with a name."""
        self._only(node, "this", "partition_by", "order", "spec", "over", "alias")
        alias = node.args.get("alias")
        if node.args.get("first") is not None or (alias is None and "partition_by" not in node.args):
            self._unknown(node)
        parts = []
        if by := node.args.get("partition_by"):
            parts.append(f"PARTITION BY {', '.join(self.expression(item) for item in by)}")
        if order := node.args.get("order"):
            parts.append(self._order(order).strip())
        if spec := node.args.get("spec"):
            parts.append(self._frame(spec))
        if alias is None:
            return f"({' '.join(parts)})"
        if parts:
            hint = "Write the whole window in the brackets, or name another one in WINDOW."
            self.refuse(alias, "sql_construct", "a window cannot be built on a named one", hint)
        return f"({self.quoted(alias)})"

    def _frame(self, node: Any) -> str:
        self._only(node, "kind", "start", "start_side", "end", "end_side")
        kind = str(node.args.get("kind") or "ROWS").upper()
        if kind not in ("ROWS", "RANGE"):
            self.refuse(node, "sql_construct", f"{shown(kind)} is no frame here", "Use ROWS or RANGE.")
        start = self._bound(node.args.get("start"), node.args.get("start_side"))
        if node.args.get("end") is None:
            return f"{kind} {start}"
        return f"{kind} BETWEEN {start} AND {self._bound(node.args['end'], node.args.get('end_side'))}"

    def _bound(self, value: Any, side: Any) -> str:
        word = str(side or "").upper()
        if value == "CURRENT ROW" and not word:
            return "CURRENT ROW"
        if value is None or value == "CURRENT ROW" or word not in ("PRECEDING", "FOLLOWING"):
            self.refuse(value, "sql_construct", "this is no bound of a frame", "Like `2 PRECEDING` or `CURRENT ROW`.")
        return f"{'UNBOUNDED' if value == 'UNBOUNDED' else self.expression(value)} {word}"

    def _order(self, node: Any) -> str:
        self._only(node, "expressions")
        return f" ORDER BY {', '.join(self._ordered(item) for item in node.expressions)}"

    def _ordered(self, item: Any) -> str:
        if not isinstance(item, exp.Ordered):
            self._unknown(item)
        self._only(item, "this", "desc", "nulls_first")
        if isinstance(item.this, exp.Column) and not item.this.table and item.this.name.upper() == "ALL":
            self.refuse(item, "sql_construct", "ORDER BY ALL is not supported here", "Name the columns.")
        direction = "DESC" if item.args.get("desc") else "ASC"
        nulls = "FIRST" if item.args.get("nulls_first") else "LAST"
        return f"{self.expression(item.this)} {direction} NULLS {nulls}"
