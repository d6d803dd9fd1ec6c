"""Trace: an event-driven data platform for on-chain research.

The layers, top to bottom (imports point down only; `import-linter` checks it):
processes > dispatcher | worker | cli | adapters > catalogue | client | db > ports > wire > model > errors
"""

__version__ = "0.1.0"
