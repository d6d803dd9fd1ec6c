"""The name of a DAG document, as far as whoever sends it has to know it."""

import re

import yaml

_NAME = re.compile(r"[a-z][a-z0-9_]{0,127}")


def dag_name(source: bytes) -> str | None:
    """The document's `name`, if it can be made out; reading the rest of it is the server's work."""
    depth, key, expects_key = 0, "", True
    try:
        for event in yaml.parse(source, Loader=yaml.SafeLoader):
            if depth == 1 and isinstance(event, yaml.NodeEvent):
                if expects_key:
                    key = event.value if isinstance(event, yaml.ScalarEvent) else ""
                elif key == "name":
                    name = event.value if isinstance(event, yaml.ScalarEvent) else ""
                    return name if _NAME.fullmatch(name) else None
                expects_key = not expects_key
            if isinstance(event, yaml.CollectionStartEvent):
                if depth == 0 and not isinstance(event, yaml.MappingStartEvent):
                    return None
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, ValueError, RecursionError):
        pass
    return None


def name_of_file(stem: str) -> str:
    """A name to send a document under that does not tell its own; the server then says what is wrong with it."""
    name = re.sub(r"[^a-z0-9_]", "_", stem.lower()).lstrip("_0123456789")[:128]
    return name if _NAME.fullmatch(name) else "dag"
