"""What a task may not say: foreign datasets, other prefixes, other locations, conflicting publications."""

import hashlib
import unicodedata
from typing import Any

import msgspec
import pytest

from tests.http.support import NOWHERE, Claimed, Refusals, claimed, make_job
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher import artifacts
from tracelake.model.locations import MARKER_FORMAT

RANGE = {"partition_key": "0-9", "start": 0, "end": 9}


@pytest.fixture(scope="module")
def task(harness: DispatcherHarness) -> Claimed:
    return claimed(harness)


@pytest.fixture(scope="module")
def stranger(harness: DispatcherHarness) -> Claimed:
    """A task of another org, with outputs of the same names."""
    return claimed(harness)


def complete(task: Claimed, **fields: Any) -> Reply:
    return task.call("complete", status="Completed", **fields)


def published(task: Claimed, start: int, end: int, **fields: Any) -> Reply:
    task.write_files()
    publication = task.publication(range_start=start, range_end=end, **fields)
    return complete(task, datasets_published=[publication])


def test_foreign_datasets_and_versions(task: Claimed, stranger: Claimed) -> None:
    mine, theirs = task.output("none"), stranger.output("none")
    foreign = (
        (theirs, "dataset_uuid"),
        (mine | {"dataset_uuid": NOWHERE}, "dataset_uuid"),
        (mine | {"dataset_version": NOWHERE}, "dataset_version"),
        (mine | {"dataset_version": theirs["dataset_version"]}, "dataset_version"),
    )
    with Refusals(task.harness) as refusals:
        for output, field in foreign:
            event, good = output | {"cursor": 1}, mine | {"cursor": 1}
            refusals.check(task.call("events", events=[good, event]), 403, "dataset_forbidden", field)
            refusals.check(complete(task, events=[good, event]), 403, "dataset_forbidden", field)
            refusals.check(complete(task, outputs=[mine, output]), 403, "dataset_forbidden", field)
        crossed = task.output("s3") | {"output_index": 3}
        refusals.check(complete(task, outputs=[crossed]), 403, "dataset_forbidden", "outputs.output_index")


def test_events_of_a_failed_attempt_are_checked_too(task: Claimed, stranger: Claimed) -> None:
    with Refusals(task.harness) as refusals:
        reply = task.call("complete", status="Failed", events=[stranger.output("none") | {"cursor": 1}])
        refusals.check(reply, 403, "dataset_forbidden")


def test_locations_that_are_not_the_registered_one(task: Claimed, stranger: Claimed) -> None:
    s3, table = task.where("s3")["write_prefix"], task.where("postgres")["location"]
    with Refusals(task.harness) as refusals:
        for output, locations in (
            (
                task.output("s3"),
                (s3[:-1], s3 + "x", s3.upper(), "s3://other/", table, stranger.where("s3")["write_prefix"]),
            ),
            (
                task.output("postgres"),
                (table + "x", s3, stranger.where("postgres")["location"], "postgres_table:tasks"),
            ),
            (task.output("buffered"), (s3, task.where("buffered")["buffer_prefix"] + "x")),
            (task.output("none"), ("anything", s3)),
        ):
            for location in locations:
                reply = complete(task, outputs=[output | {"location": location}])
                refusals.check(reply, 403, "prefix_forbidden", "outputs.location")


def test_publications_outside_the_grant(task: Claimed, stranger: Claimed) -> None:
    """Even when files and a _SUCCESS lie there."""
    task.write_files()
    stranger.write_files()
    good = task.publication()
    ref = good["storage_ref"]
    prefix, theirs = ref["prefix"], stranger.publication()["storage_ref"]
    generation = prefix.rsplit("/", 3)[0] + "/"
    wrong = [
        {"prefix": theirs["prefix"]},
        {"prefix": prefix[:-1]},
        {"prefix": prefix + "/"},
        {"prefix": "/" + prefix},
        {"prefix": prefix[:-1] + "0/"},  # attempt 1 is not attempt 10
        {"prefix": prefix[:-2] + "2/"},
        {"prefix": generation},
        {"prefix": prefix + "../1/"},
        {"prefix": prefix + "./"},
        {"prefix": prefix.replace("/", "//", 1)},
        {"prefix": prefix.replace("/", "%2F", 1)},
        {"prefix": prefix.replace("datasets", "dat%61sets")},
        {"prefix": prefix.replace("/", "\\", 1)},
        {"prefix": prefix + "*"},
        {"prefix": prefix + "\n"},
        {"prefix": f"datasets/../{prefix}"},
        {"bucket": "other-bucket"},
        {"bucket": ref["bucket"] + "."},
        {"bucket": f"{ref['bucket']}/datasets"},
    ]
    with Refusals(task.harness) as refusals:
        for fields in wrong:
            reply = complete(task, datasets_published=[good | {"storage_ref": ref | fields}])
            refusals.check(reply, 403, "prefix_forbidden", "datasets_published[0].storage_ref")
        for glob in ("*", "", "**/*.parquet", "*.parquet ", "*.PARQUET", "x.parquet", "../*.parquet"):
            reply = complete(task, datasets_published=[good | {"storage_ref": ref | {"glob": glob}}])
            refusals.check(reply, 403, "prefix_forbidden", "datasets_published[0].storage_ref.glob")
        for output in (stranger.output("s3"), task.output("none"), good | {"dataset_version": NOWHERE}):
            item = good | {key: output[key] for key in ("dataset_uuid", "dataset_version")}
            refusals.check(complete(task, datasets_published=[item]), 403, "prefix_forbidden")


def test_a_publication_needs_its_success_marker(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    prefix = task.where("s3")["write_prefix"]
    with Refusals(harness) as refusals:
        for name in ("blocks.parquet", "_success", "_SUCCESS.parquet", "sub/_SUCCESS"):
            task.put(prefix + name)
            reply = complete(task, datasets_published=[task.publication()])
            refusals.check(reply, 422, "output_incomplete", "datasets_published[0]")


def test_a_publication_of_too_many_files_is_refused(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "LISTING_LIMIT", 3)
    task = claimed(harness)
    prefix = task.where("s3")["write_prefix"]
    for name in ("a.parquet", "b.parquet", "c.parquet", "_SUCCESS"):
        task.put(prefix + name)
    with Refusals(harness) as refusals:
        reply = complete(task, datasets_published=[task.publication()])
        error = refusals.check(reply, 422, "too_many_objects", "datasets_published[0]")
    assert error["details"]["limit"] == 3
    monkeypatch.setattr(artifacts, "LISTING_LIMIT", 4)
    assert complete(task, datasets_published=[task.publication()]).body == {"status": "Completed"}


def test_a_marker_that_names_files_is_read_strictly(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    prefix = task.where("s3")["write_prefix"]
    task.put(prefix + "a.parquet", b"PAR1")
    task.put(prefix + "sub/b.parquet", b"PAR1")
    file = named("a")
    wrong = [
        [file | {"sha256": HASH[1:]}],
        [file | {"sha256": HASH.upper()}],
        [{"name": "a.parquet", "size": 4}],
        [file | {"size": 5}],
        [file, file],
        [file, named("b")],
        [file | {"name": "sub/b.parquet"}],
        [file | {"name": "../1/a.parquet"}],
        [file | {"name": "_SUCCESS", "size": 100}],
        [{"name": "a.parquet"}],
        [file | {"etag": "x"}],
        ["a.parquet"],
        {},
    ]
    with Refusals(harness) as refusals:
        for files in wrong:
            task.put(prefix + "_SUCCESS", marker(files))
            reply = complete(task, datasets_published=[task.publication()])
            refusals.check(reply, 422, "output_incomplete", "datasets_published[0]")
        task.put(prefix + "_SUCCESS", marker([file]) + b"{}")
        refusals.check(complete(task, datasets_published=[task.publication()]), 422, "output_incomplete")
        task.put(prefix + "_SUCCESS", marker([file]).replace(b"files-2", b"files-3"))
        refusals.check(complete(task, datasets_published=[task.publication()]), 422, "output_incomplete")
        task.put(prefix + "_SUCCESS", marker([file]).ljust(2**22 + 1))
        refusals.check(complete(task, datasets_published=[task.publication()]), 422, "output_incomplete")


def test_only_files_that_the_marker_names_are_committed(harness: DispatcherHarness) -> None:
    """Others were left by Spark tasks that were tried again, or come after it."""
    task = claimed(harness)
    prefix = task.where("s3")["write_prefix"]
    for name in ("a", "b", "straggler"):
        task.put(f"{prefix}{name}.parquet", b"PAR1")
    task.put(prefix + "_SUCCESS", marker([named("b"), named("a")]))
    outputs = [task.output("s3") | {"file_count": 2, "size_bytes": 8}]
    assert complete(task, outputs=outputs, datasets_published=[task.publication()]).status == 200
    (row,) = harness.sql("SELECT objects FROM manifests WHERE task_id = $1", task.task_id)
    assert [(file["uri"].removeprefix(prefix), file["sha256"]) for file in msgspec.json.decode(row["objects"])] == [
        ("a.parquet", HASH),
        ("b.parquet", HASH),
    ]


HASH = hashlib.sha256(b"PAR1").hexdigest()


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": f"{name}.parquet", "size": 4, "sha256": HASH} | fields


def marker(files: Any) -> bytes:
    return MARKER_FORMAT + msgspec.json.encode(files) + b"}"


def test_a_marker_of_the_format_before_pins_files_without_hashes(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    prefix = task.where("s3")["write_prefix"]
    task.put(f"{prefix}a.parquet", b"PAR1")
    task.put(prefix + "_SUCCESS", b'{"format":"trace-files-1","files":[{"name":"a.parquet","size":4}]}')
    assert complete(task, datasets_published=[task.publication()]).status == 200
    (row,) = harness.sql("SELECT objects FROM manifests WHERE task_id = $1", task.task_id)
    assert [sorted(file) for file in msgspec.json.decode(row["objects"])] == [["etag", "size", "uri"]]


def test_a_publication_is_what_the_attempt_says_it_wrote(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    task.write_files()
    said = task.output("s3")
    with Refusals(harness) as refusals:
        for fields in ({"file_count": 2}, {"size_bytes": 5}, {"file_count": 1, "size_bytes": 3}, {"file_count": 0}):
            reply = complete(task, outputs=[said | fields], datasets_published=[task.publication()])
            error = refusals.check(reply, 422, "output_incomplete", "datasets_published[0]")
        assert error["message"] == "The attempt reported files: 0; the object store has files: 1, bytes: 4."
    # What is said of an output that is not published by files is the attempt's own word.
    outputs = [said | {"file_count": 1, "size_bytes": 4}, task.output("buffered") | {"file_count": 7}]
    assert complete(task, outputs=outputs, datasets_published=[task.publication()]).body == {"status": "Completed"}


def test_a_conflict_says_what_to_do(harness: DispatcherHarness) -> None:
    job = make_job(harness)
    assert published(claimed(harness, job), 100, 199).status == 200
    assert published(claimed(harness, job), 300, 399).status == 200
    other = claimed(harness, job)
    anew = "make the dataset anew with `reset_outputs: true`."
    with Refusals(harness) as refusals:
        for start, end, unit, cure in (
            (100, 250, "100-199", "trigger the missing range (200-250), or "),
            (110, 120, "100-199", "trigger the whole unit (100-199), or "),
            (0, 999, "300-399", "trigger only the ranges that are missing, or "),
        ):
            error = refusals.check(published(other, start, end), 422, "publication_conflict")
            overlap = f"Blocks {start}-{end} overlap the unit {unit} of s3_set; units of a dataset do not overlap: "
            assert error["message"] == f"{overlap}{cure}{anew}"
        error = refusals.check(complete(other, datasets_published=[other.publication()]), 422, "publication_conflict")
        assert error["message"].startswith("All blocks overlap the unit 300-399 of s3_set; ")
    assert published(other, 200, 250).status == 200
    job = make_job(harness)
    whole = claimed(harness, job)
    whole.write_files()
    assert complete(whole, datasets_published=[whole.publication()]).status == 200
    part = claimed(harness, job)
    with Refusals(harness) as refusals:
        error = refusals.check(published(part, 0, 9), 422, "publication_conflict")
        assert error["message"] == (
            f"Blocks 0-9 overlap the unit that is all of s3_set; units of a dataset do not overlap: {anew}"
        )


def test_publication_conflicts(harness: DispatcherHarness) -> None:
    job = make_job(harness)
    assert published(claimed(harness, job, unit=RANGE), 0, 9).status == 200
    assert published(claimed(harness, job), 20, 29, config_hash=job["config_hash"]).status == 200
    other = claimed(harness, job)
    exact = claimed(harness, job, unit={"partition_key": "0-8", "start": 0, "end": 8})
    with Refusals(harness) as refusals:
        for start, end in ((5, 14), (0, 8), (0, 10), (9, 9), (9, 20), (0, 2**63 - 1), (25, 26), (29, 40)):
            reply = published(other, start, end)
            refusals.check(reply, 422, "publication_conflict", "datasets_published")
        # To be made for the range does not help when it cuts across another unit.
        refusals.check(published(exact, 0, 8), 422, "publication_conflict", "datasets_published")
        # The very range, by a task that was not made for it.
        refusals.check(published(other, 0, 9), 422, "publication_conflict", "datasets_published")
        # Everything at once.
        whole = complete(other, datasets_published=[other.publication()])
        refusals.check(whole, 422, "publication_conflict", "datasets_published")
        error = refusals.check(
            published(other, 50, 59, config_hash="sha256:other"),
            422,
            "publication_conflict",
            "datasets_published.config_hash",
        )
        assert error["details"]["recorded"] == job["config_hash"]
    assert published(claimed(harness, job, unit=RANGE), 0, 9).status == 200
    assert published(other, 10, 19).status == 200


def test_a_dataset_is_published_once_per_task(harness: DispatcherHarness) -> None:
    """Its files lie below one prefix: two publications would pin the same bytes twice."""
    task = claimed(harness)
    task.write_files()
    first, apart = {"range_start": 0, "range_end": 9}, {"range_start": 10, "range_end": 19}
    with Refusals(harness) as refusals:
        bad: list[list[dict[str, int]]] = [[first, first], [first, apart], [first, {}], [{}, {}]]
        for publications in bad:
            reply = complete(task, datasets_published=[task.publication(**fields) for fields in publications])
            refusals.check(reply, 422, "body_invalid", field="datasets_published")
    assert complete(task, datasets_published=[task.publication(**first)]).body == {"status": "Completed"}


def test_a_task_made_for_a_range_publishes_that_range_alone(harness: DispatcherHarness) -> None:
    task = claimed(harness, unit={"partition_key": "0-9", "start": 0, "end": 9})
    task.write_files()
    with Refusals(harness) as refusals:
        for fields in ({"range_start": 5, "range_end": 24}, {"range_start": 0, "range_end": 8}, {}):
            reply = complete(task, datasets_published=[task.publication(**fields)])
            refusals.check(reply, 422, "publication_conflict", field="datasets_published")
    own = task.publication(range_start=0, range_end=9)
    assert complete(task, datasets_published=[own]).body == {"status": "Completed"}


def test_files_with_names_no_address_can_spell_are_not_pinned(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    task.write_files()
    prefix = task.where("s3")["write_prefix"].removeprefix("s3://")
    folder = harness.home / "objects" / prefix
    for name in (b"\xff.parquet", b"50%.parquet", b"a\nb.parquet"):
        (folder / name.decode(errors="surrogateescape")).write_bytes(b"PAR1")
    assert complete(task, datasets_published=[task.publication()]).status == 200
    objects = harness.sql("SELECT objects FROM manifests WHERE task_id = $1", task.task_id)[0]["objects"]
    assert objects.count(".parquet") == 1


def publish(task: Claimed, **fields: Any) -> Reply:
    return task.call("buffer-publish", **({"dedupe_scope": "buffered_set"} | fields))


def test_artifacts_outside_the_grant(task: Claimed, stranger: Claimed) -> None:
    mine, theirs = task.where("buffered")["buffer_prefix"], stranger.where("buffered")["buffer_prefix"]
    stranger.put(theirs + "batch.jsonl")
    decomposed = unicodedata.normalize("NFD", "é")
    with Refusals(task.harness) as refusals:
        for uri in (
            theirs + "batch.jsonl",
            mine,
            mine[:-1],
            mine[:-1] + "0/batch.jsonl",
            mine[:-1] + "x",
            mine + "../1/batch.jsonl",
            mine + ".." + theirs.removeprefix("s3:/") + "batch.jsonl",
            mine + "./batch.jsonl",
            mine + "/batch.jsonl",
            mine + "a//b",
            mine + "batch%2Ejsonl",
            mine + "%2e%2e/x",
            mine + "batch*.jsonl",
            mine + "batch?.jsonl",
            mine + "a\\b",
            mine + "batch\n.jsonl",
            mine + "\x7f",
            mine + decomposed,
            mine + "x" * 1100,
            mine.replace("s3://", "s3:///"),
            mine.replace("s3://", "S3://") + "a",
            mine.replace("s3://", "file://") + "a",
            mine.replace("s3://", "s3://other-") + "a",
            "/etc/passwd",
            "s3://",
            "x",
            task.where("s3")["write_prefix"] + "batch.jsonl",
        ):
            refusals.check(publish(task, batch_uri=uri), 403, "prefix_forbidden", "batch_uri")


def test_artifacts_that_are_not_what_the_call_says(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    prefix = task.where("buffered")["buffer_prefix"]
    limit = harness.config.artifact_max_bytes
    task.put(prefix + "small.jsonl", b"{}\n")
    task.put(prefix + "large.jsonl", b"x" * (limit + 1))
    task.put(prefix + "folder/inner", b"{}\n")
    with Refusals(harness) as refusals:

        def refused(status: int, code: str, field: str, name: str = "small.jsonl", **fields: Any) -> Any:
            return refusals.check(publish(task, batch_uri=prefix + name, **fields), status, code, field)

        refused(422, "artifact_missing", "batch_uri", "other.jsonl")
        refused(422, "artifact_missing", "batch_uri", "folder")
        refused(422, "artifact_missing", "batch_uri", "small.jsonl/below")
        refused(422, "artifact_missing", "batch_uri", "n" * 300)
        error = refused(413, "artifact_too_large", "batch_uri", "large.jsonl")
        assert error["details"]["limit_bytes"] == limit
        refused(422, "artifact_mismatch", "batch_size_bytes", batch_size_bytes=4)
        refused(422, "body_invalid", "batch_size_bytes", batch_size_bytes=-1)
        refused(422, "body_invalid", "record_count", record_count=-1)
        refused(422, "body_invalid", "content_type", content_type="text/csv")
        refused(
            422,
            "body_invalid",
            "dedupe_scope",
            dataset_uuid=task.output("buffered")["dataset_uuid"],
            dedupe_scope="none_set",
        )
        refused(403, "dataset_forbidden", "dedupe_scope", dedupe_scope="unheard_of")
        refused(403, "dataset_forbidden", "dataset_uuid", dataset_uuid=NOWHERE)
        refused(403, "dataset_forbidden", "dataset_uuid", dedupe_scope="s3_set")
        refused(403, "dataset_forbidden", "dataset_version", dataset_version=NOWHERE)
        reply = task.call("buffer-publish", batch_uri=prefix + "small.jsonl")
        refusals.check(reply, 422, "body_invalid", "")
    output = task.output("buffered")
    accepted = publish(task, batch_uri=prefix + "small.jsonl", batch_size_bytes=3, record_count=1, **output)
    assert (accepted.status, "duplicate" in accepted.body) == (200, False)
    assert publish(task, batch_uri=prefix + "small.jsonl").body == accepted.body | {"duplicate": True}


def test_who_is_not_current_hears_that_first(harness: DispatcherHarness) -> None:
    """An attempt that ended stops at 409, whatever else is wrong with its call."""
    task = claimed(harness)
    assert complete(task).status == 200
    missing = task.where("buffered")["buffer_prefix"] + "never-written"
    foreign = [task.output("none") | {"dataset_uuid": NOWHERE, "cursor": 1}]
    with Refusals(harness) as refusals:
        for reply in (
            publish(task, batch_uri=missing),
            publish(task, batch_uri="s3://elsewhere/a"),
            task.call("events", events=foreign),
            task.call("heartbeat"),
        ):
            error = refusals.check(reply, 409, "fenced")
            assert error["details"] == {"attempt": 1, "status": "Completed"}
        # A repeated final word is a duplicate, even when its files are gone.
        repeat = complete(task, datasets_published=[task.publication()], events=foreign)
        assert repeat.body == {"status": "Completed", "duplicate": True}
