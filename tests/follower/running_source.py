"""The operator in a thread, while a test changes the chain."""

import threading
from collections.abc import Callable

from tests.follower.announcing_node import PATIENCE
from tests.follower.source import Source
from tracelake.catalogue.context import CanceledError
from tracelake.wire.head_progress import HeadProgress


class RunningSource(Source):
    """It runs until the block of the `with` ends."""

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        self.errors: list[BaseException] = []
        self._cancel = threading.Event()
        self._looked = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "RunningSource":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._cancel.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert [type(error) for error in self.errors] == [CanceledError]

    def _run(self) -> None:
        try:
            self.run(self._cancel)
        except BaseException as error:
            self.errors.append(error)
            with self._looked:
                self._looked.notify_all()

    def report(self, progress: HeadProgress) -> None:
        with self._looked:
            super().report(progress)
            self._looked.notify_all()

    def wait_until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Looks after each look of the follower."""
        with self._looked:
            self._looked.wait_for(lambda: self.errors or holds(), PATIENCE)
            assert not self.errors, self.errors
            assert holds(), otherwise

    def wait_stored(self, number: int) -> None:
        self.wait_until(lambda: self.newest == number, f"block {number} did not come")

    def wait_looks(self, count: int) -> None:
        target = len(self.reports) + count
        self.wait_until(lambda: len(self.reports) >= target, "it does not look")
