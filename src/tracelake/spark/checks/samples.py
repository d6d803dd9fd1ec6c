"""Some rows of a frame as short texts, cut in Spark: of a value, however large, only the beginning is collected."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelake.wire.task_calls import MAX_SAMPLE_ROWS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_COLUMNS = 8
MAX_TEXT = 100
_MAX_BYTES = 32

Sample = list[dict[str, str | None]]


def take_sample(frame: "DataFrame", names: Sequence[str], first: Sequence[int] = ()) -> Sample:
    """Rows of a frame whose columns are called as `names`; the columns `first` come first, by their positions."""
    import pyspark.sql.functions as F  # noqa: N812

    order = order_columns(len(names), first)
    # By position: names may be anything, and two may be the same.
    plain = frame.toDF(*(f"c{index}" for index in range(len(names))))
    types = [field.dataType.typeName() for field in plain.schema.fields]
    columns = [_text(F.col(f"c{index}"), types[index]).alias(f"t{place}") for place, index in enumerate(order)]
    rows = plain.select(*columns).limit(MAX_SAMPLE_ROWS).collect()
    labels = label_columns([names[index] for index in order])
    return [
        {
            label: None if value is None else shorten(value, types[index])
            for label, index, value in zip(labels, order, row, strict=True)
        }
        for row in rows
    ]


def order_columns(number: int, first: Sequence[int]) -> list[int]:
    """The columns that a sample shows, by their positions: those of the check, then others."""
    return [*first, *(index for index in range(number) if index not in first)][:MAX_COLUMNS]


def _text(column: "Column", kind: str) -> "Column":
    import pyspark.sql.functions as F  # noqa: N812

    if kind == "binary":
        return F.concat(F.lit("0x"), F.lower(F.hex(F.substring(column, 1, _MAX_BYTES + 1))))
    return F.substring(column.cast("string"), 1, MAX_TEXT + 1)


def shorten(value: str, kind: str) -> str:
    """A value of a sample, with at most so many visible characters; of the type `binary` as hexadecimal digits."""
    most = 2 + 2 * _MAX_BYTES if kind == "binary" else MAX_TEXT
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in value)
    return plain if len(plain) <= most else f"{plain[:most]}..."


def label_columns(names: Sequence[str]) -> list[str]:
    """Names of columns that are short and differ."""
    labels: list[str] = []
    for name in names:
        label = (name[:60] or "?").encode("utf-8", "replace").decode()
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return labels
