"""Parses untrusted bytes into a tree of YAML values with their positions.

The tree is built from the parser's events, without recursion and without constructing objects. Depth and number of
values are bounded while the tree grows, aliases counted with everything they repeat; so later steps may recurse and
may follow aliases. What cannot be read becomes a problem and a `BadNode`, which later steps ignore because it has been
reported.
"""

import re
from dataclasses import dataclass, field
from itertools import islice

import yaml

from tracelake.dag.problems import ProblemList, shown
from tracelake.dag.scalars import is_text
from tracelake.dag.text_positions import RawScalar

MAX_BYTES = 2**20
MAX_DEPTH = 64
MAX_VALUES = 100_000
_MAX_BAD_CHARACTERS = 10

# What YAML takes, less the line breaks that no editor counts.
_BAD_CHARACTER = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True, eq=False)
class YamlNode:
    line: int
    column: int
    values: int = 1
    """Itself and everything below it."""
    height: int = 0


@dataclass(slots=True, eq=False)
class ScalarNode(YamlNode):
    text: str = ""
    plain: bool = False
    """Written without quotes, so that it may be a number, a boolean or null."""
    raw: RawScalar | None = None
    """How it is written."""


@dataclass(slots=True, eq=False)
class ListNode(YamlNode):
    items: list[YamlNode] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MapNode(YamlNode):
    entries: dict[str, tuple[YamlNode, YamlNode]] = field(default_factory=dict)
    """Key and value nodes, in the order of the text."""


@dataclass(slots=True, eq=False)
class BadNode(YamlNode):
    """Something that was reported already."""


def joined(path: str, key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        return f'{path}["{shown(key)[1:-1]}"]'
    return f"{path}.{key}" if path else key


def parse(text: bytes, problems: ProblemList) -> YamlNode | None:
    """The root of the one document, or None when problems say why there is none."""
    decoded = _decoded(text, problems)
    return None if decoded is None else _TreeBuilder(decoded, problems).build()


def _decoded(text: bytes, problems: ProblemList) -> str | None:
    def report(before: str, code: str, message: str, suggestion: str) -> None:
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        problems.add(code, message, line=line, column=column, path="", suggestion=suggestion)

    if len(text) > MAX_BYTES:
        message = f"The document has {len(text)} bytes; the limit is {MAX_BYTES}."
        report("", "document_too_large", message, "Split the DAG: a DAG may read the datasets of another one.")
        return None
    try:
        decoded = text.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        message = f"Byte 0x{text[error.start]:02x} is not part of UTF-8 text."
        report(text[: error.start].decode("utf-8-sig"), "text_invalid", message, "Save the file as UTF-8.")
        return None
    bad_characters = list(islice(_BAD_CHARACTER.finditer(decoded), _MAX_BAD_CHARACTERS))
    for match in bad_characters:
        message = f"The character U+{ord(match[0]):04X} is not allowed in a document."
        hint = 'Remove it, or write it as an escape like "\\u2028" in double quotes.'
        report(decoded[: match.start()], "text_invalid", message, hint)
    return None if bad_characters else decoded


@dataclass(slots=True)
class _Open:
    """A list or map that is not finished."""

    node: ListNode | MapNode
    started_at: int
    key: tuple[str, YamlNode] | None = None
    has_key: bool = False
    """The next value belongs to `key`; to a key that was refused if that is None."""


class _StopError(Exception):
    """Nothing sensible can be read from here on."""


class _TreeBuilder:
    def __init__(self, text: str, problems: ProblemList) -> None:
        self._text = text
        self._lines = text.count("\n") + 1
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, YamlNode] = {}
        self._values = 0
        self._root: YamlNode | None = None

    def build(self) -> YamlNode | None:
        try:
            self._read_events()
        except _StopError:
            return None
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
            return None
        if self._root is None:
            self._problem("yaml_documents", "The document is empty.", 1, 1, "Begin with `name` and `jobs`.")
        return self._root

    def _read_events(self) -> None:
        documents = 0
        for event in yaml.parse(self._text, Loader=_LOADER):
            mark = event.start_mark
            line, column = mark.line + 1, mark.column + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop("yaml_documents", "A second document begins here.", line, column, "Use one file each.")
            elif isinstance(event, yaml.AliasEvent):
                self._add(self._alias(event.anchor, line, column))
            elif isinstance(event, yaml.ScalarEvent):
                self._count(line, column)
                self._add(self._anchored(event.anchor, self._scalar(event, line, column)))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._count(line, column)
                if event.tag is not None:
                    self._refuse_tag(event.tag, line, column)
                is_list = isinstance(event, yaml.SequenceStartEvent)
                node = ListNode(line, column) if is_list else MapNode(line, column)
                self._anchored(event.anchor, node)
                self._check_depth(node, line, column)
                self._open.append(_Open(node, self._values - 1))
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self._open.pop()
                done.node.values = self._values - done.started_at
                self._add(done.node)

    # --- values

    def _scalar(self, event: yaml.ScalarEvent, line: int, column: int) -> YamlNode:
        if event.tag is not None:
            return self._refuse_tag(event.tag, line, column)
        if _UNSTORABLE.search(event.value):
            self._problem("text_invalid", "The text holds a NUL or half a character.", line, column, "Remove it.")
            return BadNode(line, column)
        # An empty plain scalar is null; its style is plain as well.
        assert event.start_mark is not None
        assert event.end_mark is not None
        raw = RawScalar(self._text, event.start_mark.index, event.end_mark.index, event.style or "")
        return ScalarNode(line, column, text=event.value, plain=event.style in (None, ""), raw=raw)

    def _refuse_tag(self, tag: str, line: int, column: int) -> YamlNode:
        message = f"The tag {shown(tag)} is not supported."
        self._problem("yaml_tag", message, line, column, "Leave it out; quote a value that shall be text.")
        return BadNode(line, column)

    def _anchored(self, anchor: str | None, node: YamlNode) -> YamlNode:
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, anchor: str | None, line: int, column: int) -> YamlNode:
        assert anchor is not None
        node = self._anchors.get(anchor)
        if node is None:
            suggestion = self._problems.did_you_mean(anchor, self._anchors) or "Quote a value that begins with `*`."
            self._problem("yaml_alias", f"There is no anchor {shown(anchor)} before this.", line, column, suggestion)
        elif any(item.node is node for item in self._open):
            self._problem("yaml_alias", f"{shown(anchor)} would contain itself.", line, column)
        else:
            self._count(line, column, node.values)
            self._check_depth(node, line, column)
            return node
        return BadNode(line, column)

    def _count(self, line: int, column: int, values: int = 1) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            message = f"The document has more than {MAX_VALUES} values, counting what aliases repeat."
            self._stop("yaml_too_many_values", message, line, column)

    def _check_depth(self, node: YamlNode, line: int, column: int) -> None:
        if len(self._open) + node.height >= MAX_DEPTH:
            self._stop("yaml_too_deep", f"Lists and maps may be nested {MAX_DEPTH} deep.", line, column)

    # --- putting together

    def _add(self, node: YamlNode) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if isinstance(parent.node, ListNode):
            parent.node.items.append(node)
        elif parent.has_key:
            if parent.key is not None:
                name, key = parent.key
                parent.node.entries[name] = (key, node)
            parent.has_key, parent.key = False, None
        else:
            parent.has_key, parent.key = True, self._key(parent.node, node)
        parent.node.height = max(parent.node.height, node.height + 1)

    def _key(self, parent: MapNode, node: YamlNode) -> tuple[str, YamlNode] | None:
        """None when the key is refused; its value is read and left out."""
        line, column = node.line, node.column
        if isinstance(node, BadNode):
            return None
        if not isinstance(node, ScalarNode):
            self._problem("key_not_text", "A key must be text, not a list or a map.", line, column)
            return None
        if node.plain and node.text == "<<":
            suggestion = "Write the fields out, or put them in `defaults`."
            self._problem("yaml_merge_key", "Merge keys (`<<`) are not supported.", line, column, suggestion)
            return None
        if node.plain and not is_text(node.text):
            message = f"The key {shown(node.text or 'null')} is not text."
            self._problem("key_not_text", message, line, column, f'Quote it: "{shown(node.text)[1:-1]}".')
            return None
        if node.text in parent.entries:
            first = parent.entries[node.text][0].line
            message = f"The key {shown(node.text)} is there already, in line {first}."
            path = joined(self._path(), node.text)
            hint = "Keep one of them."
            self._problems.add("duplicate_key", message, line=line, column=column, path=path, suggestion=hint)
            return None
        return node.text, node

    # --- saying what is wrong

    def _path(self) -> str:
        path = ""
        for item in self._open:
            if isinstance(item.node, ListNode):
                path += f"[{len(item.node.items)}]"
            elif item.key is not None:
                path = joined(path, item.key[0])
        return path

    def _problem(self, code: str, message: str, line: int, column: int, suggestion: str = "") -> None:
        self._problems.add(code, message, line=line, column=column, path=self._path(), suggestion=suggestion)

    def _stop(self, code: str, message: str, line: int, column: int, suggestion: str = "") -> None:
        self._problem(code, message, line, column, suggestion)
        raise _StopError

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line + 1, self._lines) if mark else 1
        column = mark.column + 1 if mark else 1
        context = f" {error.context}" if error.context else ""
        message = f"This is not YAML: {error.problem}{context}."
        self._problem("yaml_syntax", message, line, column, _syntax_hint(self._text.split("\n")[line - 1], column))


def _syntax_hint(line: str, column: int) -> str:
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        return "Indent with spaces, not tabs."
    if re.search(r"(?:^|[:\-\[{,]\s)\s*[*&%@`!]", line):
        return "Quote a value that begins with one of * & % @ ` !."
    is_misplaced = column == len(indentation) + 1  # the whole line, whatever is in it
    if not is_misplaced and (line[column - 1 : column] == ":" or ": " in line.partition(": ")[2]):
        return "Quote a text that has a colon in it."
    return "Look at indentation, quotes and brackets here and in the line above."
