"""Lines of logs of attempts, as people see them.

What a line says was written by anybody: control characters are spelled out, so that none of it reaches the terminal.
"""

from datetime import UTC, datetime

from rich.text import Text

from tracelake.cli.text import clean_lines
from tracelake.wire.run_logs import LogLine

LEVEL_STYLES = {"error": "red", "critical": "red", "warning": "yellow", "debug": "dim"}


def line_text(line: LogLine, prefix: str = "") -> Text:
    """`12:00:00.123 warning spark    the text`, with further lines of the text below it."""
    first, *more = clean_lines(line.text.replace("\r\n", "\n")).split("\n")
    style = LEVEL_STYLES.get(line.level, "")
    text = Text.assemble(
        (f"{prefix} " if prefix else "", "cyan"),
        (f"{moment_text(line.time)} ", "dim"),
        (f"{line.level:<7} ", style),
        (f"{line.source:<8} ", "dim"),
        (first, style if line.level == "error" else ""),
    )
    for part in more:
        text.append(f"\n    {part}", style="dim")
    return text


def moment_text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}.{at.microsecond // 1000:03d}"
