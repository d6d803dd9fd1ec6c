"""The files of `examples/`: the recorded chain, DAGs, functions, and the project that `trace init` writes.

A wheel has them beside this module, in `tracelake/examples`. In a clone, also one that is installed as editable, they
are in the root of the clone.
"""

from pathlib import Path

_INSTALLED = Path(__file__).with_name("examples")
_CLONED = Path(__file__).resolve().parents[2] / "examples"

RECORDED_CHAIN = "token_flows/chain.jsonl.xz"


def find_example(name: str) -> Path:
    """The path of a file or directory below `examples/`."""
    return (_INSTALLED if _INSTALLED.is_dir() else _CLONED) / name
