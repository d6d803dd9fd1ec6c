"""The transfer that tests of operators use keeps the promises of the real one."""

from pathlib import Path

import pytest

from tests.conformance.file_transfer_suite import FileTransferSuite
from tracelake.spark.testing import DirectoryTransfer


class TestDirectoryTransfer(FileTransferSuite):
    @pytest.fixture
    def transfer(self, tmp_path: Path) -> DirectoryTransfer:
        return DirectoryTransfer(tmp_path / "objects")
