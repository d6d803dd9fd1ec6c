"""Why something is not running, or not fresh, and what to do about it.

`reasons` is the table of everything that can be said. `task`, `job`, `source` and `dataset` find out what is true of
one of them, with the wordings of pauses, pressure, quotas and limits from `stops`, and `answer` makes one paragraph of
it. Nothing here decides anything: the tables are read, never written.
"""
