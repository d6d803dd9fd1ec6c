"""The events of a write of the follower: new blocks, changed ones, and ranges that other jobs make files of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracelake.follower.links import ChainFork, ChainLink, sound_part
from tracelake.follower.nodes import ChainRows
from tracelake.follower.options import FollowOptions, RangeOutputs
from tracelake.ports.direct_tables import TableExtent
from tracelake.wire.units import EventIn, Invalidates, TaskOutput

FIRST = "1"
"""The revision of blocks of a live dataset that are new, as of a first commit of files."""


def next_seal(options: FollowOptions, extent: TableExtent, first: int, last: int) -> int | None:
    """The end of the last unit that is final with a write of these blocks; None if no other one is."""
    assert options.unit_blocks is not None
    final = last - options.finality_depth
    end = (final + 1) // options.unit_blocks * options.unit_blocks - 1
    return end if end > _sealed(extent, first) else None


def unit_ends(size: int, start: int, end: int) -> range:
    """The last blocks of the units that end between two blocks."""
    return range(start - start % size + size - 1, end + 1, size)


@dataclass(eq=False)
class WriteAnnouncer:
    outputs: Mapping[str, TaskOutput]
    options: FollowOptions
    attempt: int
    ranges: RangeOutputs | None
    _rewrites: int = field(default=0, init=False)

    def announce(
        self,
        tip: Sequence[ChainLink],
        fork: ChainFork,
        rows: ChainRows,
        extent: TableExtent,
        *,
        seal: int | None,
        changed_from: int | None,
    ) -> list[EventIn]:
        """`seal`: blocks up to it are final with this write. `changed_from`: files from this block on are to be read
        anew, up to the first block of the write; None: none are."""
        if fork.depth:
            self._rewrites += 1
        # A revision that no event had before. It is stored with the rows, so a repeated event has the same one.
        revision = f"{rows.links[-1].hash}.{self.attempt}.{self._rewrites}"
        if self.ranges is None:
            return self._announce_cursors(tip, fork, rows, revision)
        return [
            *self._announce_ranges(tip, fork, rows, revision),
            *self._announce_history(self.ranges.history, tip, fork, changed_from, revision),
            *self._announce_final(self.ranges.final, _sealed(extent, fork.first), seal),
        ]

    def _announce_cursors(
        self, tip: Sequence[ChainLink], fork: ChainFork, rows: ChainRows, revision: str
    ) -> list[EventIn]:
        invalidates = None
        if fork.depth:
            invalidates = Invalidates(start=fork.first, end=tip[-1].number, reason=self._reason(tip, fork))
        return [
            EventIn(
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                cursor=rows.links[-1].number,
                revision=revision if fork.depth else "",
                invalidates=invalidates,
            )
            for output in self.outputs.values()
        ]

    def _announce_ranges(
        self, tip: Sequence[ChainLink], fork: ChainFork, rows: ChainRows, revision: str
    ) -> list[EventIn]:
        """Blocks of live datasets: first what changed, then what is new. Units are what announced blocks first."""
        events, first, last = [], fork.first, rows.links[-1].number
        if fork.depth:
            replaced = (fork.first, tip[-1].number)
            invalidates = Invalidates(start=replaced[0], end=replaced[1], reason=self._reason(tip, fork))
            events += [_range_event(output, *replaced, revision, invalidates) for output in self.outputs.values()]
            first = replaced[1] + 1
        if first <= last:
            events += [_range_event(output, first, last, FIRST) for output in self.outputs.values()]
        return events

    def _announce_history(
        self, output: TaskOutput, tip: Sequence[ChainLink], fork: ChainFork, changed_from: int | None, revision: str
    ) -> list[EventIn]:
        """What the nodes have before the first block of the tables, and sealed blocks that changed."""
        start = self.options.start
        if not tip and start is not None and start < fork.first:
            return [_range_event(output, start, fork.first - 1)]
        if changed_from is None or changed_from >= fork.first:
            return []
        return [_range_event(output, changed_from, fork.first - 1, revision)]

    def _announce_final(self, output: TaskOutput, sealed: int, seal: int | None) -> list[EventIn]:
        if seal is None:
            return []
        assert self.options.unit_blocks is not None
        events, first = [], sealed + 1
        for end in unit_ends(self.options.unit_blocks, first, seal):
            events.append(_range_event(output, first, end))
            first = end + 1
        return events

    def _reason(self, tip: Sequence[ChainLink], fork: ChainFork) -> str:
        if len(sound_part(tip)) < len(tip):
            return f"a gap in the stored blocks: {fork.depth} blocks were read again"
        final = fork.depth - self.options.finality_depth
        return f"reorganisation of {fork.depth} blocks" + (f", {final} of them final" if final > 0 else "")


def _sealed(extent: TableExtent, first: int) -> int:
    """The last block that is sealed, or the one before the tables. `first`: of a write, which may be the first one."""
    if extent.sealed_to is not None:
        return extent.sealed_to
    return (first if extent.table_start is None else extent.table_start) - 1


def _range_event(
    output: TaskOutput, start: int, end: int, revision: str = "", invalidates: Invalidates | None = None
) -> EventIn:
    return EventIn(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        partition_key=f"{start}-{end}",
        start=start,
        end=end,
        revision=revision,
        invalidates=invalidates,
    )
