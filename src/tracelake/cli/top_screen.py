"""The screen of `trace top`.

It always fits the terminal: names are shortened in the middle, and a part without room for all its lines shows how many
are missing. Busy jobs come first, the worst on top; so do full queues, and sources that do not run. Without a height
everything is shown.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tracelake.cli.pressure import STATE_STYLES as PRESSURE_STYLES
from tracelake.cli.rates import Measured, Rate, missing_text, task_counts
from tracelake.cli.sources import STYLES as SOURCE_STYLES
from tracelake.cli.sources import with_slots
from tracelake.cli.text import ago, clean, count, span
from tracelake.wire.overview import CountName, JobLoad
from tracelake.wire.pressure import PressureEdgeRow, QueueRow
from tracelake.wire.sources_view import SourceRow, SourcesReply

_WIDE = 100
"""From this width on columns have their full names, and there are more of them."""
_NAME_LEAST = 12
_STOPS = {"stopped": "full", "bulk_stopped": "bulk work stopped"}
_LEVELS = {"stopped": 3, "bulk_stopped": 2, "paused": 1, "open": 0}
_SOURCE_ORDER = (
    "dead",
    "overdue",
    "backing_off",
    "stopped",
    "paused",
    "stopping",
    "starting",
    "running",
    "waiting",
    "ended",
)


@dataclass(frozen=True, slots=True)
class TopScreen:
    measured: Measured
    title: str = ""
    """Which DAGs it shows."""
    note: Text | None = None
    height: int | None = None
    """The height of the terminal."""
    step: Text | None = None
    """The next step, if something needs attention; a note takes its place."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        for line in self.lines(width):
            yield _one_line(line, width)

    def lines(self, width: int) -> list[Text]:
        head = [*self._head(width), *(_note_lines(self.note, width) or [self.step or Text()])]
        parts = [self._jobs(width), self._pressure(width), self._sources(width)]
        room = None if self.height is None else max(self.height - len(head) - len(parts) + 1, 0)
        heights = without_idle([len(part) for part in parts], room, self._idle())
        screen_lines = head
        for number, (part, most) in enumerate(zip(parts, share(heights, room), strict=True)):
            if number and most:
                screen_lines.append(Text())
            screen_lines += cut(part, most, self._idle() if number == 0 else 0)
        return screen_lines if self.height is None else screen_lines[: self.height]

    # --- the head

    def _head(self, width: int) -> list[Text]:
        reply, total = self.measured.reply, self.measured.total
        ages = [job.oldest_ready_seconds for job in reply.jobs if job.oldest_ready_seconds is not None]
        oldest = Text(f"  oldest ready {span(max(ages)) or '0s'}" if ages else "", style="dim")
        lines = [
            Text.assemble(
                ("trace top", "bold"),
                f"  {reply.now.astimezone(UTC):%H:%M:%S}Z  {clean(self.title)}",
                (f"  rates over {max(1, round(self.measured.seconds))}s", "dim"),
            ),
            Text.assemble(
                ("per second  ", "dim"),
                (_rate(total.events), "bold"),
                " events  ",
                (_rate(total.made), "bold"),
                " tasks made  ",
                (_rate(total.done), "bold"),
                " tasks done",
            ),
            Text.assemble(("tasks now   ", "dim"), task_counts(reply.jobs)),
        ]
        missing = missing_text(reply.jobs)
        if missing:
            lines.append(Text.assemble(("missing     ", "dim"), missing))
        # Whole, in the last of the lines that has room for it.
        for place in (2, 1, 0):
            if lines[place].cell_len + oldest.cell_len <= width:
                lines[place].append_text(oldest)
                break
        return lines

    # --- jobs

    def _jobs(self, width: int) -> list[Text]:
        reply = self.measured.reply
        if not reply.jobs:
            return [
                Text("No DAG has an active version, so nothing runs. Deploy one: `trace deploy FILE`.", style="yellow")
            ]
        levels = {(queue.dag, queue.job): queue.state for queue in reply.queues if not queue.backlog}
        jobs = sorted(reply.jobs, key=lambda job: self._badness(job, levels.get((job.dag, job.job), "open")))
        wide = width >= _WIDE
        names = ["ready", "oldest", "running", "waiting", "retrying", "failed", "made/s", "done/s", "events/s"]
        if not wide:
            names = ["ready", "oldest", "run", "wait", "retry", "fail", "made/s", "done/s"]
        # These two only if there are any: most of the time there are none, and names need the room.
        missing: list[tuple[str, Callable[[JobLoad], Text]]] = []
        if any(job.gaps for job in jobs):
            missing.append(("gaps", lambda job: _dim_zero(str(job.gaps))))
        if any(job.dead_letters for job in jobs):
            missing.append(("refused" if wide else "ref", lambda job: _number(job, "dead_letters", "bold red")))
        names += [name for name, _ in missing]
        rows = []
        for job in jobs:
            state = levels.get((job.dag, job.job), "open")
            style = PRESSURE_STYLES[state] if state != "open" else "bold" if self._goes_on(job) else "dim"
            cells = [*self._cells(job, wide=wide), *(make_cell(job) for _, make_cell in missing)]
            rows.append([Text(clean(f"{job.dag}/{job.job}"), style=style), *cells])
        return aligned(["job", *names], rows, width)

    def _cells(self, job: JobLoad, *, wide: bool) -> list[Text]:
        rates = self.measured.jobs[(job.dag, job.job)]
        age = job.oldest_ready_seconds
        cells = [
            _number(job, "ready"),
            Text("" if age is None else span(age) or "0s"),
            _number(job, "running", "cyan"),
            _number(job, "held", "yellow"),
            _number(job, "retrying", "yellow"),
            _number(job, "failed", "bold red"),
            _dim_zero(_rate(rates.made)),
            _dim_zero(_rate(rates.done)),
        ]
        return [*cells, _dim_zero(_rate(rates.events))] if wide else cells

    def _idle(self) -> int:
        return sum(not self._goes_on(job) for job in self.measured.reply.jobs)

    def _goes_on(self, job: JobLoad) -> bool:
        counts = (job.ready, job.running, job.held, job.retrying, job.failed, job.made, job.events, job.dead_letters)
        return any(counts)

    def _badness(self, job: JobLoad, state: str) -> tuple[object, ...]:
        """The sort key: the smaller, the further up."""
        oldest = job.oldest_ready_seconds or 0.0
        waiting = job.ready + job.held + job.retrying
        return (not self._goes_on(job), -_LEVELS[state], -round(oldest), -waiting, -job.failed, -job.running,
                job.dag, job.job)  # fmt: skip

    # --- pressure

    def _pressure(self, width: int) -> list[Text]:
        reply = self.measured.reply
        if not reply.queues and not reply.stopped:
            return [Text.assemble(("pressure  ", "bold"), ("no queue has a threshold, and no source is paused", "dim"))]
        full = [queue for queue in reply.queues if queue.state != "open"]
        title = f"{count(len(reply.queues), 'queue')} with a threshold, {len(full)} full; "
        title += f"{count(len(reply.stopped), 'input')} stopped"
        lines = [Text.assemble(("pressure  ", "bold"), (title, "" if full or reply.stopped else "dim"))]
        lines += [self._queue(queue, width) for queue in full]
        lines += [_stopped(edge, width) for edge in reply.stopped]
        lines += [self._queue(queue, width) for queue in reply.queues if queue.state == "open" and queue.depth]
        return lines

    def _queue(self, queue: QueueRow, width: int) -> Text:
        what = "batches" if queue.backlog else "queued"
        depth = f"{queue.depth} {what}" if queue.max_depth is None else f"{queue.depth} of {queue.max_depth} {what}"
        age = span(queue.age_seconds) or "0s"
        limit = "" if queue.max_age_seconds is None else f" of {span(queue.max_age_seconds)}"
        seconds = 0.0 if queue.since is None else (self.measured.reply.now - queue.since).total_seconds()
        since = f", {_STOPS.get(queue.state, '')} for {span(seconds) or '0s'}" if queue.since is not None else ""
        name = Name(f"{queue.dag}/{queue.job}", PRESSURE_STYLES.get(queue.state, ""))
        return fitted(
            width, "  backlog of " if queue.backlog else "  queue ", name, f": {depth}, oldest {age}{limit}{since}"
        )

    # --- sources

    def _sources(self, width: int) -> list[Text]:
        reply = self.measured.reply
        if not reply.sources:
            return [Text.assemble(("sources  ", "bold"), ("none", "dim"))]
        sources = with_slots(SourcesReply(sources=reply.sources, now=reply.now)).sources
        order = {state: place for place, state in enumerate(_SOURCE_ORDER)}
        rows = []
        for source in sorted(
            sources, key=lambda row: (order.get(_source_state(row), 0), -(row.lag_seconds or 0), row.dag, row.job)
        ):
            state, rates = _source_state(source), self.measured.jobs.get((source.dag, source.job))
            rows.append(
                [
                    Text(clean(f"{source.dag}/{source.job}"), style="bold"),
                    Text(source.kind),
                    Text(
                        state.replace("_", " "),
                        style=SOURCE_STYLES.get(state, "bold red" if state == "overdue" else ""),
                    ),
                    Text("" if source.lag_seconds is None else span(source.lag_seconds) or "0s"),
                    Text(self._last(source)),
                    _dim_zero(str(source.kept)),
                    _dim_zero("" if rates is None else _rate(rates.events)),
                ]
            )
        return aligned(["source", "kind", "state", "lag", "last event", "kept", "events/s"], rows, width)

    def _last(self, source: SourceRow) -> str:
        return "never" if source.last_event_at is None else ago(source.last_event_at, self.measured.reply.now)


def _source_state(source: SourceRow) -> str:
    """The state of a source; `overdue` for a cron source whose slot should have been fired by now."""
    return "overdue" if source.overdue_since is not None and source.state == "waiting" else source.state


def _stopped(edge: PressureEdgeRow, width: int) -> Text:
    """A line for a stopped input: what it waits for is a full queue, or the end of a pause."""
    name = Name(f"{edge.dag}/{edge.job}", PRESSURE_STYLES.get(edge.state, ""))
    wide = width >= _WIDE
    start: list[str | Name] = ["  input " if wide else "  ", Name(edge.dataset), " of ", name]
    backlog = f"{count(edge.backlog, 'event')} kept" if wide else f"{edge.backlog} kept"
    if edge.queue is None or edge.state == "paused":
        return fitted(width, *start, f", {backlog}: ", Name((edge.because or edge.state).removeprefix(f"{edge.dag}/")))
    if edge.queue == f"{edge.dag}/{edge.job}" and not edge.queue_is_backlog:
        return fitted(width, *start, f" waits for its own queue, {backlog}")
    what = " waits for the backlog of " if edge.queue_is_backlog else " waits for "
    return fitted(width, *start, what, Name(edge.queue.removeprefix(f"{edge.dag}/")), f", {backlog}")


# --- lines and columns


class Name(NamedTuple):
    """A text that may be shortened if there is no room."""

    text: str
    style: str = "bold"


def fitted(width: int, *pieces: str | Name) -> Text:
    """One line, in which the names share the room that the other text leaves."""
    texts = [clean(piece if isinstance(piece, str) else piece.text) for piece in pieces]
    names = [number for number, piece in enumerate(pieces) if isinstance(piece, Name)]
    room = width - sum(cell_len(text) for number, text in enumerate(texts) if number not in names)
    for left, number in enumerate(sorted(names, key=lambda number: cell_len(texts[number]))):
        texts[number] = shortened_middle(texts[number], max(room // (len(names) - left), _NAME_LEAST))
        room -= cell_len(texts[number])
    styles = [piece.style if isinstance(piece, Name) else "" for piece in pieces]
    return Text.assemble(*zip(texts, styles, strict=True))


def without_idle(heights: Sequence[int], room: int | None, idle: int) -> list[int]:
    """The heights of the parts, less the idle lines at the end of the first part that the others need; one line stays,
    which counts them."""
    hidden = 0 if room is None else min(max(sum(heights) - room, 0), max(idle - 1, 0))
    return [heights[0] - hidden, *heights[1:]]


def share(heights: Sequence[int], room: int | None) -> list[int]:
    """How many lines each part gets, at most its height. If there is not enough for all, the parts after the first get
    at most a quarter each before the first has its height."""
    if room is None or sum(heights) <= room:
        return list(heights)
    granted = [0, *(min(lines, room // 4) for lines in heights[1:])]
    granted[0] = max(0, min(heights[0], room - sum(granted)))
    spare = room - sum(granted)
    for number in range(1, len(heights)):
        more = max(0, min(spare, heights[number] - granted[number]))
        granted[number] += more
        spare -= more
    return granted


def cut(lines: list[Text], most: int, idle: int = 0) -> list[Text]:
    """The lines that fit; the first is the heading, and the last counts those that are not shown. The last `idle`
    lines are those of idle jobs."""
    if len(lines) <= most:
        return lines
    if most < 2:
        return lines[:most]
    left = len(lines) - most + 1
    busy = left - idle
    more = f"{left} more" if not idle else f"{left} more, all idle" if busy <= 0 else f"{left} more, {busy} busy"
    return [*lines[: most - 1], Text(f"  ... {more}", style="dim")]


def aligned(names: list[str], rows: list[list[Text]], width: int) -> list[Text]:
    """A table: text is aligned left, numbers right, and the first column takes the room that is left."""
    widths = [max(cell_len(name), *(cell_len(row[place].plain) for row in rows)) for place, name in enumerate(names)]
    left = [place for place in range(len(names)) if place == 0 or names[place] in ("kind", "state")]
    gap = 2 if sum(widths) + 2 * (len(names) - 1) <= width else 1
    rest = width - sum(widths[1:]) - gap * (len(names) - 1)
    widths[0] = max(min(widths[0], rest), _NAME_LEAST)
    lines = []
    for row in [[Text(name, style="dim") for name in names], *rows]:
        line = Text()
        for place, cell in enumerate(row):
            text = shortened_middle(cell.plain, widths[place])
            blank = " " * (widths[place] - cell_len(text))
            if place:
                line.append(" " * gap)
            line.append(text + blank if place in left else blank + text, style=cell.style)
        lines.append(line)
    return lines


def shortened_middle(text: str, width: int) -> str:
    """The text without its middle, because names often differ at their ends."""
    if cell_len(text) <= width:
        return text
    keep = max(width - 2, 2)
    head = chop_cells(text, keep // 2)[0]
    tail = chop_cells(text[::-1], keep - keep // 2)[0][::-1]
    return f"{head}..{tail}"


def _note_lines(note: Text | None, width: int) -> list[Text]:
    """The note in at most two lines."""
    lines = textwrap.wrap(note.plain, width, max_lines=2, placeholder=" ...") if note is not None and width > 5 else []
    return [Text(line, style=note.style if note is not None else "") for line in lines]


def _one_line(line: Text, width: int) -> Text:
    shortened = line.copy()
    shortened.truncate(width, overflow="crop")
    shortened.no_wrap, shortened.overflow = True, "crop"
    return shortened


def _number(job: JobLoad, name: CountName, style: str = "") -> Text:
    value = getattr(job, name)
    text = f"{value}+" if name in job.cut else str(value)
    return Text(text, style="dim" if text == "0" else style)


def _dim_zero(text: str) -> Text:
    return Text(text, style="dim" if text in ("0", "-") else "")


def _rate(rate: Rate) -> str:
    if rate.value is None:
        return "-"
    value, more = rate.value, "+" if rate.least else ""
    if not value:
        return f"0{more}"
    return f"{value:.1f}{more}" if value < 99.95 else f"{value:.0f}{more}"
