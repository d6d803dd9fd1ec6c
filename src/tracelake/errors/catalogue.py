"""Every error code the wire can carry. Codes are stable: one may be added, none changes its meaning.

`docs/reference/errors.md` is generated from this table.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorKind:
    code: str
    status: int
    message: str
    remedy: str
    retryable: bool = False
    answered: bool = True
    """False: what a task fails with, said by its worker; no call is answered with it."""


_KINDS = (
    ErrorKind(
        "artifact_mismatch",
        422,
        "The stored artifact is not what the call says it is.",
        "Upload the artifact again, then publish it with its real size.",
    ),
    ErrorKind(
        "artifact_missing",
        422,
        "No object is stored at that address.",
        "Upload the artifact before publishing it.",
    ),
    ErrorKind("artifact_too_large", 413, "The artifact is larger than allowed.", "Split it into several artifacts."),
    ErrorKind(
        "body_invalid",
        422,
        "The request is well-formed JSON but not valid here.",
        "Correct the field that `details.field` names.",
    ),
    ErrorKind("body_malformed", 400, "The request body is not valid JSON.", "Send one complete JSON document."),
    ErrorKind(
        "body_too_large",
        413,
        "The request body is larger than allowed.",
        "Send less in one call, or use a batch form.",
    ),
    ErrorKind(
        "cancel_requested",
        422,
        "The task was asked to stop, so a result is no longer taken.",
        "Stop the work and complete with status Canceled.",
    ),
    ErrorKind(
        "commit_conflict",
        422,
        "The batch is recorded under another commit.",
        "Ask the table which commit it belongs to, and say that.",
    ),
    ErrorKind(
        "content_mismatch",
        422,
        "A file does not have the SHA-256 that was recorded at its commit.",
        "The object store was changed behind the platform: restore it from a backup, or trigger the unit again.",
    ),
    ErrorKind(
        "credential_expired",
        401,
        "The credential has expired.",
        "Ask for a fresh one (heartbeat or task-token).",
    ),
    ErrorKind(
        "credential_invalid",
        401,
        "The credential is not valid.",
        "Use the credential that was issued to you, unchanged.",
    ),
    ErrorKind(
        "credential_malformed",
        401,
        "The credential cannot be read.",
        "Send the credential exactly as it was issued.",
    ),
    ErrorKind(
        "credential_missing",
        401,
        "This route needs a credential and none was sent.",
        "Send the header that the API reference names for this route.",
    ),
    ErrorKind(
        "credential_unknown_key",
        401,
        "The credential names a key that is not known.",
        "Ask for a fresh credential.",
    ),
    ErrorKind(
        "dag_invalid",
        422,
        "The DAG document has errors.",
        "Correct what `details.problems` lists; each has its line, its column and a suggestion.",
    ),
    ErrorKind("dag_not_found", 404, "There is no such DAG.", "List them: `trace dags`."),
    ErrorKind(
        "dag_version_not_found",
        404,
        "The DAG has no such version.",
        "List the versions first (`trace dags NAME`).",
    ),
    ErrorKind(
        "dataset_forbidden",
        403,
        "The task may not write this dataset.",
        "Name only the datasets and versions listed in the task's own outputs.",
    ),
    ErrorKind(
        "dataset_not_committed",
        404,
        "Nothing of this generation of the dataset has been committed.",
        "Ask again when a task has written it, or name another generation.",
    ),
    ErrorKind(
        "dataset_not_found",
        404,
        "There is no such dataset.",
        "List them: `trace datasets`.",
    ),
    ErrorKind("dead_letter_not_found", 404, "There is no such dead letter.", "List them first (`trace outbox dead`)."),
    ErrorKind(
        "deadline_exceeded",
        409,
        "The attempt has reached its hard time limit.",
        "Stop the work; raise timeout_seconds of the job if it needs longer.",
    ),
    ErrorKind(
        "delivery_conflict",
        422,
        "This delivery id was used for another body.",
        "Use a new id for each delivery, or repeat the delivery exactly as it was.",
    ),
    ErrorKind("delivery_not_found", 404, "There is no such delivery.", "List the deliveries of the job first."),
    ErrorKind(
        "document_reader_unavailable",
        503,
        "The process that reads documents ended before it had read this one.",
        "Repeat the call after a short wait; nothing was changed.",
        retryable=True,
    ),
    ErrorKind(
        "document_too_costly",
        422,
        "Reading the document takes more time or memory than is allowed.",
        "Split the DAG, or shorten its queries; `document_seconds` is the limit.",
    ),
    ErrorKind(
        "event_without_publication",
        422,
        "An event on an output that is kept in files has no publication of its unit.",
        "Publish the unit in `datasets_published` of the same completion, or leave the event out.",
    ),
    ErrorKind(
        "fenced",
        409,
        "This attempt is no longer current.",
        "Stop the work: a newer attempt runs, or the task has ended.",
    ),
    ErrorKind("input_not_found", 404, "The job has no such input or output.", "See the job's inputs (`trace jobs`)."),
    ErrorKind(
        "inputs_incomplete",
        422,
        "The inputs of the unit are not completely there.",
        "Make the ranges that `details.missing` names, or trigger a unit that the inputs cover.",
    ),
    ErrorKind("internal", 500, "Something failed inside Trace.", "Report it with the time of the call."),
    ErrorKind(
        "job_invalid",
        422,
        "The job definition is not valid.",
        "Correct the field that `details.field` names.",
    ),
    ErrorKind("job_not_found", 404, "There is no such job.", "Check its name or id (`trace jobs DAG`)."),
    ErrorKind("job_not_source", 422, "The job is not a source.", "Name a source of the DAG (`trace sources`)."),
    ErrorKind(
        "key_rotation_pending",
        422,
        "A rotation is already under way.",
        "Wait until the coming key signs, then rotate again.",
    ),
    ErrorKind(
        "listener_busy",
        503,
        "The listener receives as many bodies of callers without a credential as it can hold.",
        "Repeat the call after a short wait, with a capability token in the header.",
        retryable=True,
    ),
    ErrorKind(
        "method_not_allowed",
        405,
        "The path exists but not for this method.",
        "See the API reference for the method.",
    ),
    ErrorKind(
        "org_not_found",
        404,
        "There is no such organisation.",
        "An organisation exists from its first deploy on; check the name.",
    ),
    ErrorKind("outbox_row_not_found", 404, "There is no such outbox row to requeue.", "List the rows first."),
    ErrorKind(
        "output_incomplete",
        422,
        "The output's files, or its _SUCCESS marker, are not all there.",
        "Finish writing the files, write _SUCCESS last, then complete.",
    ),
    ErrorKind(
        "prefix_forbidden",
        403,
        "That address lies outside what the task may write.",
        "Write below the prefixes listed in the task's own outputs.",
    ),
    ErrorKind(
        "publication_conflict",
        422,
        "The publication conflicts with what is recorded for this dataset version.",
        "See `details`; publish a new dataset version if the definition changed.",
    ),
    ErrorKind(
        "publish_not_found",
        404,
        "There is no such batch of this dataset.",
        "List dead letters with `trace dlq list`.",
    ),
    ErrorKind(
        "quota_deploys",
        429,
        "The organisation has deployed as many versions in the last hour as it may.",
        "Wait as long as Retry-After says, or ask the platform's operator for more (`trace quota`).",
    ),
    ErrorKind(
        "quota_dry_runs",
        429,
        "The organisation has made as many dry runs in the last minute as it may.",
        "Wait as long as Retry-After says, or ask the platform's operator for more (`trace quota`).",
    ),
    ErrorKind(
        "quota_queued_tasks",
        429,
        "The organisation has as many queued tasks as it may.",
        "Wait until some have run, cancel some, or ask the platform's operator for more (`trace quota`).",
    ),
    ErrorKind(
        "quota_stored_bytes",
        422,
        "The organisation stores as many bytes as it may.",
        "Let old versions go (`trace gc`), or ask the platform's operator for more (`trace quota`).",
    ),
    ErrorKind(
        "quota_units_per_range",
        422,
        "The range has more units than the organisation may make of one range.",
        "Take a shorter range or larger units, or ask the platform's operator for more (`trace quota`).",
    ),
    ErrorKind("rate_limited", 429, "Too many requests.", "Wait as long as Retry-After says.", retryable=True),
    ErrorKind(
        "role_forbidden", 403, "The credential is good but does not open this route.", "Use a token with that role."
    ),
    ErrorKind("route_not_found", 404, "There is no such path on this listener.", "See the API reference."),
    ErrorKind(
        "secret_missing",
        422,
        "The job names a secret that its org does not have.",
        "Set it (`trace secrets set NAME`), then retry the task.",
        answered=False,
    ),
    ErrorKind(
        "secrets_unavailable",
        503,
        "The secrets of the job cannot be read right now.",
        "Mend what the message names; the task is tried again by itself.",
        retryable=True,
        answered=False,
    ),
    ErrorKind(
        "signature_invalid",
        401,
        "The delivery is not signed with the webhook's secret.",
        "Sign the time, the delivery id and the body exactly as they are sent, with the current secret.",
    ),
    ErrorKind(
        "signature_malformed",
        401,
        "The signature or the delivery id cannot be read.",
        "Send `t=<unix seconds>,v1=<64 hex digits>`, and an id of 1 to 200 visible ASCII characters without a dot.",
    ),
    ErrorKind(
        "signature_stale",
        401,
        "The delivery was signed too long ago, or in the future.",
        "Sign again when you send again, by a clock that is right.",
    ),
    ErrorKind(
        "source_not_found",
        404,
        "There is no such source at work.",
        "List the sources first; one is at work while the version of its DAG that has it is active.",
    ),
    ErrorKind(
        "store_unavailable",
        503,
        "A store that this call needs is not available right now.",
        "Repeat the same call after a short wait; that is safe.",
        retryable=True,
    ),
    ErrorKind(
        "task_conflict",
        422,
        "A task with this id exists and is a different one.",
        "Use a new task_id, or repeat the call exactly as it was.",
    ),
    ErrorKind(
        "task_finished",
        422,
        "The task has already ended.",
        "Nothing to do; `details.status` says how it ended.",
    ),
    ErrorKind(
        "task_not_failed",
        422,
        "Only a task that failed for good can be skipped.",
        "Look at the task first; `details.status` says where it stands.",
    ),
    ErrorKind("task_not_found", 404, "There is no such task.", "Check the task's id."),
    ErrorKind(
        "token_mismatch",
        403,
        "The capability token was issued for another task or attempt.",
        "Send the token that came with this very attempt.",
    ),
    ErrorKind(
        "too_many_objects",
        422,
        "More objects are stored below the prefix than one listing takes.",
        "Write fewer, larger files, then complete the attempt again.",
    ),
    ErrorKind(
        "trigger_conflict",
        422,
        "This idempotency_key was used for another trigger.",
        "Use a new key, or repeat the call exactly as it was.",
    ),
    ErrorKind(
        "trigger_invalid",
        422,
        "This job cannot be triggered like that.",
        "See `details.field`; the message says what fits.",
    ),
    ErrorKind(
        "webhook_not_found",
        404,
        "There is no such webhook.",
        "Check the path; a webhook answers while a version of its DAG that has it is active.",
    ),
)

CATALOGUE: dict[str, ErrorKind] = {kind.code: kind for kind in _KINDS}
