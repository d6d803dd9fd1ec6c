"""The JSON Schema of documents, for editors. It checks the form; `read_dag` also resolves names."""

from typing import Any

import msgspec

from tracelake.dag.fields import DOCUMENT


def json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trace DAG",
        "description": "Jobs, what they read, and which of their outputs have a name.",
        **DOCUMENT.schema(),
    }


def json_schema_text() -> str:
    """The schema as text, for the documentation."""
    text = msgspec.json.encode(json_schema(), order="sorted")
    return msgspec.json.format(text, indent=2).decode() + "\n"
