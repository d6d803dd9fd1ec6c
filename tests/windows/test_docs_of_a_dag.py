"""`trace docs` of a real Dispatcher: the example of the documentation, and the picture in it."""

import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import run_trace
from tests.cli.fake_api import write_stack
from tests.cli.test_docs_page import check_page
from tests.http.support import user_token
from tests.windows.support import WindowFlow
from tracelake.cli.docs_page import STYLE

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "graph.svg"


def test_the_example(
    windows: WindowFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = windows.harness
    windows.deploy((ROOT / "examples" / "token_flows" / "flows.yaml").read_text())
    write_stack(tmp_path, f"https://{harness.clients['public']._authority}", harness.tls.ca)
    (tmp_path / "admin.token").write_text(user_token(harness, org=windows.org) + "\n")
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    output = tmp_path / "page.html"
    ended = run_trace(monkeypatch, capsys)("docs", "token_flows", "--output", str(output))
    assert ended.status == 0, ended.err
    page = output.read_text()
    read = check_page(page)
    for part in ("transfers", "hourly_flows", "large_transfers", "amount_f64"):
        assert part in read.texts, part
    (graph,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    picture = f"{re.sub(r'</?a[^>]*>', '', graph).replace('</title>', f'</title><style>{STYLE}</style>', 1)}\n"
    if os.environ.get("TRACE_WRITE_PICTURES"):
        PICTURE.write_text(picture)
    assert PICTURE.read_text() == picture, "draw it again: make pictures"
