"""Work of a version that is not active any more stays as it is until the version is active again."""

import pytest

from tests.routing.support import Flow
from tests.routing.versions import Version
from tests.support import dags
from tracelake.errors import TraceError


def test_what_failed_in_a_version_that_does_not_count_is_not_tried_again(flow: Flow) -> None:
    flow.deploy(Version().text)
    flow.trigger("d", "src", cursor=1)
    flow.run_all("feeder")
    (task,) = flow.tasks("each")
    flow.fail(task["task_id"])
    flow.deploy(Version(each=1).text)
    dags.activate(flow.harness, "d", 2, now=True)
    with pytest.raises(TraceError, match="task_finished"):
        flow.person("retry", task["task_id"])
    assert flow.harness.row(str(task["task_id"]))["status"] == "Failed"
    dags.activate(flow.harness, "d", 1)
    flow.person("retry", task["task_id"])
    flow.trigger("d", "src", cursor=2)
    flow.run_all("feeder", "each")
    flow.drain()
    assert [item["status"] for item in flow.tasks("each") if item["unit_key"] == "c:1"].count("Completed") == 1
