"""The master key of webhooks: made once, by one of those who start, and never replaced."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tracelake.adapters.webhook_key import FILE_NAME, ensure_webhook_key
from tracelake.model.ids import new_id

NAME = (new_id(), "dag", "job", 1)


def test_it_is_private_and_stays(tmp_path: Path) -> None:
    secret = ensure_webhook_key(tmp_path / "keys").secret(*NAME)
    path = tmp_path / "keys" / FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert re.fullmatch(r"[0-9a-f]{64}\n", path.read_text())
    assert ensure_webhook_key(tmp_path / "keys").secret(*NAME) == secret
    assert ensure_webhook_key(tmp_path / "others").secret(*NAME) != secret
    assert [file.name for file in path.parent.iterdir()] == [FILE_NAME]


def test_of_many_who_start_at_once_one_makes_it(tmp_path: Path) -> None:
    for number in range(10):
        barrier = Barrier(8)

        def start(barrier: Barrier = barrier, home: Path = tmp_path / str(number)) -> str:
            barrier.wait(10)
            return ensure_webhook_key(home).secret(*NAME)

        with ThreadPoolExecutor(8) as threads:
            assert len({found.result() for found in [threads.submit(start) for _ in range(8)]}) == 1


@pytest.mark.parametrize("text", ["", "rubbish", "ab" * 31])
def test_a_file_that_holds_no_key_is_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ValueError, match=r"webhook\.key does not hold"):
        ensure_webhook_key(tmp_path)
    assert (tmp_path / FILE_NAME).read_text() == text
