"""Run with: python -m unittest   (or pytest), in the environment that has tracelake. It needs no stack."""

import unittest
from datetime import date
from pathlib import Path

from tracelake.testing import check_document, run_job

DAG = Path(__file__).with_name("activity.yaml")
MIDNIGHT = 1_772_409_600  # 2026-03-02 00:00 UTC


class ActivityTest(unittest.TestCase):
    def test_the_document(self) -> None:
        """All mistakes, each with its line: fields, names, the columns and types of the query."""
        check_document(DAG)

    def test_a_day(self) -> None:
        """The query runs on Spark, as it will on a stack. Columns that are left out are null."""
        blocks = [
            {"block_number": 7, "timestamp": MIDNIGHT - 1},
            {"block_number": 8, "timestamp": MIDNIGHT},
            {"block_number": 9, "timestamp": MIDNIGHT + 86_399},
            {"block_number": 10, "timestamp": MIDNIGHT + 86_400},
        ]
        senders = {7: [b"a"], 8: [b"a", b"b"], 9: [b"a"], 10: [b"c"]}
        transactions = [
            {"block_number": number, "from_address": sender} for number in senders for sender in senders[number]
        ]
        rows = run_job(DAG, "daily", {"blocks": blocks, "transactions": transactions}, unit="2026-03-02")
        self.assertEqual(rows, [{"day": date(2026, 3, 2), "transactions": 3, "senders": 2}])


if __name__ == "__main__":
    unittest.main()
