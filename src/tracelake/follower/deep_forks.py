"""A reorganisation that the follower does not follow by itself: what is known of it, and what a repair does."""

from typing import NamedTuple

from tracelake.follower.links import ChainFork
from tracelake.follower.options import FollowOptions, RepairPermit


class DeepFork(NamedTuple):
    """`fork` is the highest place where the chains may have parted, by all hashes that are stored."""

    fork: ChainFork
    is_known: bool
    """False: they parted there or further down, in files whose hashes are not stored."""
    first_file: int | None
    """The first block of a live dataset; None: there are tables alone."""
    files_to: int
    """The last block that is in files, or will be without a change; it may be below `first_file`."""

    @property
    def reaches_files(self) -> bool:
        return not self.is_known or self.fork.first <= self.files_to

    def describe(self, options: FollowOptions, newest: int) -> str:
        parent, first = self.fork.parent, self.fork.first
        start = f"from block {first} on" if parent is None else f"after block {parent.number}"
        start += "" if self.is_known else ", or from further back"
        if self.reaches_files:
            return f"{start}, and blocks up to {self.files_to} are final"
        return f"from further back than {options.max_reorg_depth} blocks below block {newest} on"

    def advise(self) -> str:
        if self.first_file is None:
            return "If the chain is right, raise max_reorg_depth; if not, correct the endpoints"
        option = "" if self.is_known else f" --from BLOCK` {self._explain()}"
        return f"If the chain is right, run `trace repair DAG/JOB{option or '`'}; if not, correct the endpoints"

    def refuse(self, permit: RepairPermit, options: FollowOptions) -> str:
        """Why a repair would leave files of the former chain, as far as that is known; empty if it would not."""
        if permit.from_block is None:
            return "" if self.is_known else f"The repair needs `--from BLOCK` {self._explain()}"
        if not self.reaches_files or options.first_of_unit(permit.from_block) <= self.fork.first:
            return ""
        choice = "leave out `--from`, or give" if self.is_known else "give"
        return (
            f"`--from {permit.from_block}` would leave files of the former chain: repeat `trace repair`, and {choice}"
            f" block {self.fork.first} or one below it"
        )

    def first_to_read(self, permit: RepairPermit, options: FollowOptions) -> int:
        """The first block of the files that are read again."""
        lowest = self.fork.first if permit.from_block is None else min(self.fork.first, permit.from_block)
        return max(options.first_of_unit(lowest), self.first_file or 0)

    def _explain(self) -> str:
        return (
            f"with the first block that changed or one below it, at most {self.fork.first}: hashes of the files below"
            f" are not stored, and `--from {self.first_file}` reads all of them again"
        )
