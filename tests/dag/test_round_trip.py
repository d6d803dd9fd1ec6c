"""What is read can be written and read again; order and comments say nothing."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.dag.rendering import documents, render, shuffled, to_yaml
from tests.dag.support import read
from tests.dag.test_reading import FULL
from tracelake.dag import canonical, document_hash
from tracelake.model.dag import Dag


@given(document=documents(), data=st.data())
def test_good_documents(document: dict[str, object], data: st.DataObject) -> None:
    text = to_yaml(document)
    dag = read(text)
    assert canonical(read(render(dag))) == canonical(dag)
    assert canonical(msgspec.json.decode(canonical(dag), type=Dag)) == canonical(dag)
    other = "# a comment\n" + to_yaml(shuffled(document, data.draw)).replace("\n", "  # more\n", 1)
    assert document_hash(read(other)) == document_hash(dag)


@given(document=documents())
def test_upstream_comes_first(document: dict[str, object]) -> None:
    seen: set[str] = set()
    for job in read(to_yaml(document)).jobs:
        assert {item.output.job for item in job.inputs if item.output is not None} <= seen
        seen.add(job.name)


def test_the_document_with_everything() -> None:
    dag = read(FULL)
    assert read(render(dag)) == dag
