"""The way of a batch, from the artifact to the tasks that read its rows; on real Postgres, with sinks that die."""

from uuid import UUID

from tests.api.support import User
from tests.sink.flow import BufferFlow
from tracelake.wire.buffers import DeadBatchesRequest


def test_rows_of_two_writers_become_one_table_and_wake_its_reader(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}, {"key": 2, "value": "b"}], "left")
    flow.publish([{"key": 2, "value": "c"}, {"key": 3}], "right")
    assert flow.sink() == 2
    assert flow.rows() == [(1, "a"), (2, "c"), (3, None)]
    assert flow.reader_units() == ["c:1"]
    assert flow.sink() == 0
    flow.publish([{"key": 3, "value": "d"}], "left", record_count=1)
    assert flow.sink() == 1
    assert flow.rows() == [(1, "a"), (2, "c"), (3, "d")]
    assert flow.reader_units() == ["c:1", "c:2"]
    assert flow.open_batches() == 0


def test_one_bad_batch_is_a_dead_letter_and_the_others_go_on(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}])
    bad = flow.publish([{"key": 2, "value": "b"}, {"key": 3, "value": "c", "memo": "x"}])
    flow.publish([{"key": 4, "value": "d"}])
    assert flow.sink() == 3
    assert flow.rows() == [(1, "a"), (4, "d")]
    (letter,) = flow.letters()
    assert (str(letter["publish_id"]), letter["dead_code"], letter["dead_line"]) == (
        bad["publish_id"],
        "row_invalid",
        2,
    )
    assert letter["dead_reason"] == "memo: is not a column of the schema"
    assert letter["dead_excerpt"] == '{"key": 3, "value": "c", "memo": "x"}'


def test_a_table_counts_as_stored_bytes_of_its_org(flow: BufferFlow) -> None:
    watch, book = flow.harness.dispatcher.quota_watch, flow.harness.dispatcher.quotas

    def stored() -> int:
        watch._next_count = 0.0
        flow.harness.run(watch.run_once())
        return book.stored(flow.org_id())

    assert stored() == 0
    flow.publish([{"key": 1, "value": "a"}])
    flow.sink()
    small = stored()
    assert small > 0
    flow.publish([{"key": number, "value": f"{number}" * 100} for number in range(2, 2000)])
    flow.sink()
    assert stored() > small + 100_000
    assert flow.sink() == 0
    assert stored() > small + 100_000, "what was told before is not lost"


def test_a_batch_that_no_sink_survives_is_a_dead_letter_in_the_end(flow: BufferFlow) -> None:
    flow.publish([{"key": 1}])
    for _ in range(9):
        flow.deaths.append("committing")
        flow.sink()
        flow.come_back()
    assert not flow.deaths
    flow.sink()
    (letter,) = flow.letters()
    assert (letter["dead_code"], letter["dead_line"]) == ("received_too_often", None)
    assert flow.rows() == []


def test_an_artifact_that_changed_or_is_gone(flow: BufferFlow) -> None:
    changed, gone = flow.publish([{"key": 1}]), flow.publish([{"key": 2}])
    flow.harness.run(flow.harness.objects.put(changed["uri"], b'{"key": 9}\n'))
    flow.harness.run(flow.harness.objects.delete(gone["uri"]))
    flow.sink()
    assert [letter["dead_code"] for letter in flow.letters()] == ["artifact_changed"] * 2
    assert flow.rows() == []


def test_a_replay_after_a_column_was_added_ends_as_if_it_had_been_right_at_first(
    flow: BufferFlow,
) -> None:
    flow.publish([{"key": 1, "value": "a"}])
    flow.publish([{"key": 1, "value": "b", "memo": "x"}, {"key": 2, "value": "c"}])
    flow.publish([{"key": 2, "value": "d"}])
    flow.sink()
    assert flow.rows() == [(1, "a"), (2, "d")]
    reply = flow.deploy("name: memo, type: text")
    (change,) = [item for item in reply.plan.datasets if item.dataset == "large"]
    assert change.table == ["add the column `memo` (text)"]
    done = flow.harness.run(flow.letters_of().replay(flow.flow.actor, DeadBatchesRequest(dataset="large")))
    assert done.changed == 1
    flow.sink()
    assert flow.rows("key", "value", "memo") == [(1, "b", "x"), (2, "d", None)]
    assert flow.letters() == []


def test_a_full_backlog_stops_its_writers_and_nobody_else(flow: BufferFlow) -> None:
    flow.deploy(limits="max_queue_depth: 2")
    watch = flow.harness.dispatcher.pressure
    flow.publish([{"key": 1}])
    flow.harness.run(watch.run_once())
    flow.publish([{"key": 2}])
    flow.harness.run(watch.run_once())
    flow.flow.trigger("transfers", "head", range={"start": 100, "end": 109})
    assert flow.flow.tasks("left", "Queued") == []
    (queue,) = flow.pressure().queues
    assert (queue.job, queue.backlog, queue.state, queue.depth) == ("large", True, "stopped", 2)
    assert queue.because.startswith("the backlog of large is full")
    assert "(2 of 2 batches; goes on below 50 %)" in queue.because
    flow.sink()
    assert flow.reader_units() == ["c:1"], "what reads the table is not stopped by what waits before it"
    assert flow.harness.run(watch.run_once()) == 1
    flow.flow.drain()
    assert [task["unit_key"] for task in flow.flow.tasks("left", "Queued")] == ["p:100-109"]
    flow.deploy()
    assert flow.pressure().queues == []


def test_artifacts_go_after_their_retention_and_dead_letters_keep_theirs(lone_flow: BufferFlow) -> None:
    flow = lone_flow
    flow.harness.use_movable_clock()
    good, bad, open_one = flow.publish([{"key": 1}]), flow.publish([{"key": "x"}]), None
    flow.sink()
    open_one = flow.publish([{"key": 2}])
    task_id, _ = flow.attempt("left")
    stray = flow.harness.dispatcher.service.config.layout.buffer_prefix(UUID(task_id), 1) + "never-published.jsonl"
    flow.harness.run(flow.harness.objects.put(stray, b"{}"))
    collect = flow.harness.dispatcher.artifacts

    def there(uri: str) -> bool:
        return flow.harness.run(flow.harness.objects.head(uri)) is not None

    assert flow.harness.run(collect.run_once()) == 0
    flow.harness.advance(8 * 86400)
    assert flow.harness.run(collect.run_once()) == 1
    assert flow.harness.run(collect.run_once()) == 0
    assert [there(item["uri"]) for item in (good, bad, open_one)] == [False, True, True]
    flow.harness.run(flow.letters_of().drop(flow.flow.actor, DeadBatchesRequest(dataset="large")))
    flow.harness.advance(8 * 86400)
    assert flow.harness.run(collect.run_once()) == 1
    assert not there(bad["uri"])
    assert flow.letters() == []
    flow.harness.reap()
    flow.harness.advance(8 * 86400)
    flow.harness.run(flow.harness.dispatcher.collector.run_once())
    assert there(open_one["uri"]), "what waits for a sink is not collected, however long it waits"


def test_dead_letters_are_for_those_whose_they_are(flow: BufferFlow) -> None:
    bad = flow.publish([{"key": "x"}])
    flow.sink()
    mine, stranger = User(flow.harness, flow.org, "writer"), User(flow.harness, "others", "writer")
    reader = User(flow.harness, flow.org, "reader")
    (letter,) = mine.get("/v1/dlq")["letters"]
    assert letter == mine.get(f"/v1/dlq/{bad['publish_id']}") == mine.get("/v1/dlq?dataset=large")["letters"][0]
    assert (letter["dataset"], letter["code"], letter["line"]) == ("large", "row_invalid", 1)
    assert stranger.get("/v1/dlq") == {"total": 0, "letters": []}
    assert stranger.call("GET", f"/v1/dlq/{bad['publish_id']}").status == 404
    for verb in ("replay", "drop"):
        for body in ({"publish_ids": [bad["publish_id"]]}, {"dataset": "large"}):
            assert stranger.call("POST", f"/v1/dlq-{verb}", body).status == 404
        both = {"publish_ids": [bad["publish_id"]], "dataset": "large"}
        assert mine.call("POST", f"/v1/dlq-{verb}", both).status == 422
        assert reader.call("POST", f"/v1/dlq-{verb}", {"dataset": "large"}).status == 403
    assert len(flow.letters()) == 1
    assert mine.call("POST", "/v1/dlq-drop", {"publish_ids": [bad["publish_id"]]}).body["changed"] == 1
    assert mine.get("/v1/dlq") == {"total": 0, "letters": []}
    actions = flow.harness.sql("SELECT action, target FROM audit_log WHERE target = $1", bad["publish_id"])
    assert [tuple(row) for row in actions] == [("dlq.drop", bad["publish_id"])]


def test_what_a_sink_says_is_checked(flow: BufferFlow) -> None:
    first, second = flow.publish([{"key": 1}]), flow.publish([{"key": 2}])
    uuid = str(flow.dataset.dataset_uuid)

    def say(commit_seq: int, *ids: str, dataset: str = uuid) -> tuple[int, str | None]:
        body = {"dataset_uuid": dataset, "commit_seq": commit_seq, "publish_ids": list(ids)}
        reply = flow.harness.service("POST", "/internal/buffer-committed", body)
        return reply.status, None if reply.status == 200 else reply.code

    assert say(1, str(UUID(int=5))) == (404, "publish_not_found")
    assert say(1, first["publish_id"], dataset=str(UUID(int=5))) == (404, "dataset_not_found")
    assert say(1, first["publish_id"]) == (200, None)
    assert say(1, first["publish_id"]) == (200, None), "the same again changes nothing"
    assert say(2, first["publish_id"]) == (422, "commit_conflict")
    assert flow.reader_units() == ["c:1"]
    rejected = {"publish_id": first["publish_id"], "code": "row_invalid", "reason": "no"}
    reply = flow.harness.service("POST", "/internal/buffer-rejected", rejected)
    assert reply.body == {"status": "committed"}
    assert flow.letters() == []
    rejected["publish_id"] = second["publish_id"]
    for _ in range(2):
        assert flow.harness.service("POST", "/internal/buffer-rejected", rejected).body == {"status": "dead"}
    assert say(2, second["publish_id"]) == (200, None), "what is in the table is no dead letter"
    assert flow.letters() == []


def test_two_sinks_at_once_take_each_batch_once(flow: BufferFlow) -> None:
    for number in range(6):
        flow.publish([{"key": number % 3, "value": str(number)}])
    assert sum(flow.sinks_at_once(3)) >= 6
    assert flow.rows() == [(0, "3"), (1, "4"), (2, "5")]
    made = set(flow.commits().values())
    assert made == set(range(1, len(made) + 1))
    assert flow.open_batches() == 0


def test_a_sink_that_has_not_heard_of_a_new_column_asks_before_it_refuses(flow: BufferFlow) -> None:
    before = flow.dataset
    flow.publish([{"key": 1, "value": "a"}])
    flow.deploy("name: memo, type: text")
    flow.publish([{"key": 2, "value": "b", "memo": "x"}])
    flow.publish([{"key": 3, "value": "c", "other": "x"}])
    assert flow.sink(known=before) == 3
    assert flow.rows("key", "value", "memo") == [(1, "a", None), (2, "b", "x")]
    (letter,) = flow.letters()
    assert "other: is not a column of the schema" in letter["dead_reason"]
