"""What every benchmark has in common: how much it measures, and where it reports its progress.

`--smoke` shows in seconds that a benchmark still runs: every code path, hardly any load. Its figures mean nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Scale(StrEnum):
    FULL = "full"
    QUICK = "quick"
    SMOKE = "smoke"

    def pick(self, full: T, quick: T, smoke: T) -> T:
        return {Scale.FULL: full, Scale.QUICK: quick, Scale.SMOKE: smoke}[self]


@dataclass(frozen=True, slots=True)
class Options:
    scale: Scale
    more: argparse.Namespace
    """The options that only this benchmark has."""


def add_scale(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="fewer and smaller readings")
    group.add_argument("--smoke", action="store_true", help="only show that the benchmark runs; ignore the figures")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_scale(parser)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> Options:
    given = parser.parse_args(arguments)
    scale = Scale.SMOKE if given.smoke else Scale.QUICK if given.quick else Scale.FULL
    return Options(scale, given)


def parse_scale(description: str | None) -> Scale:
    """For a benchmark without options of its own."""
    return parse(make_parser(description)).scale


def say(text: str) -> None:
    """Progress goes to standard error: standard output ends in the one JSON line."""
    print(text, file=sys.stderr, flush=True)
