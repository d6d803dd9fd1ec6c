"""The generated pages in the repository are what their generators say."""

from collections.abc import Callable

import pytest
from tools.docs import PAGES, ROOT


@pytest.mark.parametrize(("path", "generate"), PAGES, ids=[path for path, _ in PAGES])
def test_the_page_is_up_to_date(path: str, generate: Callable[[], str]) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == generate(), "run `make docs`"
