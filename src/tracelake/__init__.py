"""Trace: an event-driven data platform for on-chain research.

The layers, top to bottom (imports point down only; `import-linter` checks it):
processes > dispatcher | worker | cli | adapters > catalogue | client | db > ports > wire > model > errors

`from tracelake import Client` is the client for Python (docs/python.md). It is imported when it is asked for: workers,
sandboxes and commands import this package too, and pay for nothing that they do not use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelake.client.python_client import Client
    from tracelake.errors import TraceError

__all__ = ["Client", "TraceError", "__version__"]
__version__ = "0.1.0"

_PLACES = {"Client": "tracelake.client.python_client", "TraceError": "tracelake.errors"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
