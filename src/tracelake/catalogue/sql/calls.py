"""Writes calls of functions, and checks each argument against its kind in `functions`."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NoReturn

from sqlglot import exp

from tracelake.catalogue.sql.findings import shown
from tracelake.catalogue.sql.functions.kinds import FLAG_OPTIONS, KINDS, MODES, OPTIONS, ArgumentKind, Form
from tracelake.catalogue.sql.functions.refused import REFUSED
from tracelake.catalogue.sql.functions.signatures import AGGREGATES, SIGNATURES, Signature
from tracelake.catalogue.sql.functions.vocabulary import EXTRACTED, INSTEAD, UNITS
from tracelake.catalogue.sql.literals.errors import LiteralError
from tracelake.catalogue.sql.literals.patterns import check_like, check_pattern
from tracelake.catalogue.sql.nodes import NodeWriter, plain_number, plain_text
from tracelake.catalogue.sql.sequences import MAX_SEQUENCE, count_steps

DEGREE = "degree"
"""In the `meta` of a pattern: the power of the length of a text that matching may cost."""
STEPS = "steps"
"""In the `meta` of a call of `sequence`: how many items it has at most."""
MAX_NUMBERS = 100
"""Items of an array of numbers that Spark plans with."""


@dataclass(slots=True)
class CallWriter(NodeWriter):
    def _function(self, node: Any) -> str:
        self._only(node, "this", "expressions")
        name = str(node.this).lower() if isinstance(node.this, str) else ""
        if name not in SIGNATURES:
            self._refuse_function(node, name)
        arguments = [item for argument in node.expressions for item in self._flat(argument, name)]
        signature, kinds = self._choose(node, name, arguments)
        texts = [self._argument(item, kind, signature) for item, kind in zip(arguments, kinds, strict=True)]
        if any(kind.form is Form.SEQUENCE_END for kind in kinds):
            self._check_sequence(node, arguments)
        distinct = "DISTINCT " if isinstance(next(iter(node.expressions), None), exp.Distinct) else ""
        return f"{name}({distinct}{', '.join(texts)})"

    def _refuse_function(self, node: Any, name: str) -> NoReturn:
        close = get_close_matches(name[:64], SIGNATURES, 1, 0.8)
        if name in REFUSED:
            hint = f"It {REFUSED[name]}. {INSTEAD.get(name, '')}".strip()
        else:
            hint = INSTEAD.get(name, "") or (f"Did you mean `{close[0]}`?" if close else "")
        self.refuse(node, "sql_function", f"queries may not call {shown(str(node.this))}", hint)

    def _flat(self, argument: Any, name: str) -> Sequence[Any]:
        """The arguments of DISTINCT, which is one node with all of them."""
        if not isinstance(argument, exp.Distinct):
            return [argument]
        if name not in AGGREGATES:
            self.refuse(argument, "sql_argument", f"{name} does not take DISTINCT", "Only aggregates do.")
        self._only(argument, "expressions")
        return list(argument.expressions)

    def _choose(self, node: Any, name: str, arguments: Sequence[Any]) -> tuple[Signature, tuple[ArgumentKind, ...]]:
        forms = [(signature, signature.kinds_of(len(arguments))) for signature in SIGNATURES[name]]
        matching = [(signature, kinds) for signature, kinds in forms if kinds is not None]
        if not matching:
            message = f"{name} takes other arguments than the {len(arguments)} here"
            self.refuse(node, "sql_argument", message, f"Write {' or '.join(f'`{form}`' for form, _ in forms)}.")
        return matching[0]

    # --- arguments

    def _argument(self, node: Any, kind: ArgumentKind, signature: Signature) -> str:
        name = signature.name
        if kind.form is Form.LAMBDA:
            if not isinstance(node, exp.Lambda):
                self._refuse_argument(node, kind, name)
            return self._lambda(node)
        if kind.form is Form.UNIT:
            return self._unit(node, name)
        if isinstance(node, exp.Star):
            return self._star(node)
        if isinstance(node, exp.Alias) and name == "struct":
            return self._item(node, False)
        if isinstance(node, exp.Lambda):
            message = f"{name} takes no lambda here"
            self.refuse(node, "sql_argument", message, f"It takes {kind.expected}.")
        # What is wrong with it in itself comes first.
        text = self.expression(node)
        if kind.form is Form.FLAG and not isinstance(node, exp.Boolean):
            self._refuse_argument(node, kind, name)
        elif kind.form is Form.TEXT:
            self._check_text(node, kind, name)
        elif kind.form is Form.NUMBER:
            self._check_number(node, kind, name)
        elif kind.form is Form.NUMBERS:
            self._check_numbers(node, kind, name)
        elif kind.form is Form.NUMBER_OR_TEXT:
            (self._check_number if plain_text(node) is None else self._check_text)(node, kind, name)
        elif kind.form is Form.OPTIONS:
            self._check_options(node, kind, name)
        return text

    def _refuse_argument(self, node: Any, kind: ArgumentKind, name: str, detail: str = "") -> NoReturn:
        """`detail` is the error of the literal's parser; without it, the argument is not a literal."""
        size = kind.form in (Form.NUMBER, Form.NUMBERS, Form.SEQUENCE_END)
        code = "sql_limit" if size else "sql_pattern" if kind.name == "pattern" else "sql_argument"
        message = f"{name} takes {kind.expected} here" + (f": {detail}" if detail else ", and nothing computed")
        self.refuse(node, code, message, kind.reason)

    def _check_text(self, node: Any, kind: ArgumentKind, name: str) -> None:
        text = plain_text(node)
        assert kind.check is not None
        if text is None:
            self._refuse_argument(node, kind, name)
        try:
            degree = kind.check(text)
        except LiteralError as error:
            self._refuse_argument(node, kind, name, str(error))
        if degree is not None:
            node.meta[DEGREE] = degree

    def _check_number(self, node: Any, kind: ArgumentKind, name: str) -> None:
        # Some take a DOUBLE alone. A size has no suffix: costs are counted from it.
        suffixed = None if kind.whole else self._suffixed_number(node)
        number = plain_number(node) if suffixed is None else Decimal(suffixed[:-1])
        if number is None:
            self._refuse_argument(node, kind, name)
        if not kind.low <= number <= kind.high or (kind.whole and number != int(number)):
            self._refuse_argument(node, kind, name, "this one is not")

    def _check_numbers(self, node: Any, kind: ArgumentKind, name: str) -> None:
        is_array = isinstance(node, exp.Anonymous) and str(node.this).lower() == "array"
        items = node.expressions if is_array else [node]
        if len(items) > MAX_NUMBERS:
            self._refuse_argument(node, kind, name, f"at most {MAX_NUMBERS} of them")
        for item in items:
            self._check_number(item, kind, name)

    def _check_options(self, node: Any, kind: ArgumentKind, name: str) -> None:
        is_map = isinstance(node, exp.Anonymous) and str(node.this).lower() == "map"
        texts = [plain_text(item) for item in node.expressions] if is_map else []
        if not is_map or len(texts) % 2:
            self._refuse_argument(node, kind, name)
        for option, value in zip(texts[::2], texts[1::2], strict=True):
            word, choice = (option or "").lower(), value or ""
            try:
                if word in OPTIONS:
                    OPTIONS[word](choice)
                elif choice.lower() not in (MODES if word == "mode" else ("true", "false")):
                    raise LiteralError("expected a known value of the option")
                elif word != "mode" and word not in FLAG_OPTIONS:
                    raise LiteralError(f"there is no option {shown(word)}")
            except LiteralError as error:
                self._refuse_argument(node, kind, name, str(error))

    def _check_sequence(self, node: Any, arguments: Sequence[Any]) -> None:
        steps = count_steps(arguments, self.expression)
        if steps is None or steps > MAX_SEQUENCE:
            detail = "" if steps is None else f"a sequence has at most {MAX_SEQUENCE:,} items"
            self._refuse_argument(arguments[1], KINDS["end"], "sequence", detail)
        node.meta[STEPS] = steps

    def _unit(self, node: Any, name: str) -> str:
        unit = node.name.upper() if isinstance(node, exp.Column) else ""
        if unit not in UNITS:
            self.refuse(node, "sql_construct", f"{name} with three arguments begins with a unit", "Like `DAY`.")
        return unit

    def _star(self, item: Any) -> str:
        raise NotImplementedError

    def _item(self, item: Any, outermost: bool) -> str:
        raise NotImplementedError

    # --- what looks like a call

    def _lambda(self, node: Any) -> str:
        self._only(node, "this", "expressions")
        names = ", ".join(self.quoted(item) for item in node.expressions)
        return f"{names if len(node.expressions) == 1 else f'({names})'} -> {self.expression(node.this)}"

    def _pattern(self, node: Any, escape: str = "\\") -> None:
        """Check the pattern of LIKE, ILIKE or RLIKE."""
        text = plain_text(node.expression)
        is_like = isinstance(node, exp.Like | exp.ILike)
        if text is None:
            hint = "Use `contains`, `startswith` or `endswith` for a text that is computed."
            self.refuse(
                node.expression, "sql_pattern", "a pattern is a text in quotes here, and nothing computed", hint
            )
        try:
            node.expression.meta[DEGREE] = check_like(text, escape) if is_like else check_pattern(text)
        except LiteralError as error:
            self.refuse(
                node.expression, "sql_pattern", f"this pattern cannot be used: {error}", KINDS["pattern"].reason
            )

    def _extract(self, node: Any) -> str:
        self._only(node, "this", "expression")
        unit = str(node.this.name).upper()
        if unit not in EXTRACTED:
            self.refuse(node, "sql_construct", f"{shown(unit)} cannot be extracted", "Like `EXTRACT(YEAR FROM ts)`.")
        return f"EXTRACT({unit} FROM {self.expression(node.expression)})"

    def _trim(self, node: Any) -> str:
        self._only(node, "this", "expression", "position")
        words = [str(node.args.get("position") or "").upper()]
        if words[0] not in ("", "BOTH", "LEADING", "TRAILING"):
            self._unknown(node)
        if (what := node.args.get("expression")) is not None:
            words.append(self.expression(what))
        return f"TRIM({' '.join(word for word in words if word)} FROM {self.expression(node.this)})"
