"""`trace dlq`: the dead letters of buffered datasets, which are batches that the sink refused."""

from collections.abc import Sequence
from uuid import UUID

import click
from rich.padding import Padding
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import cursor_option, limit_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, count, unit_text
from tracelake.client.paging import collect
from tracelake.wire import routes
from tracelake.wire.buffers import MAX_PUBLISHES, DeadBatch, DeadBatchesRequest

_READABLE = 48
"""The least width of a reason, so that it reads as a sentence."""


@click.group()
def command() -> None:
    """List, replay and drop dead letters: batches of rows that the sink could not write to a buffered dataset.

    One row that does not fit refuses its whole batch, and none of its rows is in the table. Correct the cause (a
    missing column, a wrong writer), then replay the batch: the table ends as if the batch had been right at first.

    \b
    Examples:
      trace dlq list
      trace dlq show 0192d6a2-...
      trace dlq replay --dataset large_transfers
      trace dlq drop 0192d6a2-...
    """


@command.command("list")
@click.option("--dataset", help="Only dead letters of this dataset.")
@limit_option(50)
@cursor_option
@user_command
def list_letters(session: Session, dataset: str | None, limit: int, cursor: str | None) -> None:
    """List dead letters, oldest first: the batch, who wrote it, the line that does not fit, and why."""
    reply = session.ask(
        lambda client: collect(client, routes.LIST_DEAD_BATCHES, "letters", limit=limit, cursor=cursor, dataset=dataset)
    )
    if not reply.letters and not reply.buffered:
        session.say(f"{dataset} is not a buffered dataset: only those receive batches, and have dead letters.")
        session.hint("see the storage of each dataset", "datasets")
        return
    if not reply.letters:
        session.say("There are no dead letters.")
        return
    session.show(letters_listing(reply.letters))
    if reply.next is not None:
        filter_options = () if dataset is None else ("--dataset", dataset)
        session.hint("see the next page", "dlq", "list", *filter_options, "--limit", limit, "--cursor", reply.next)
    else:
        session.hint("see one", "dlq", "show", str(reply.letters[0].publish_id))
        if dataset is not None:
            session.hint("once the cause is corrected, replay all of them", "dlq", "replay", "--dataset", dataset)
            session.hint("or drop their rows for good", "dlq", "drop", "--dataset", dataset)


def letters_listing(letters: Sequence[DeadBatch]) -> Listing:
    return Listing(
        letters,
        ListingColumn("batch", lambda letter: str(letter.publish_id), whole=True),
        ListingColumn("dataset", lambda letter: letter.dataset),
        ListingColumn("refused", lambda letter: ago(letter.died_at), whole=True),
        ListingColumn("written by", _writer),
        ListingColumn("line", lambda letter: letter.line, right=True),
        ListingColumn("why", lambda letter: letter.reason, least=_READABLE),
    )


def _writer(letter: DeadBatch) -> str:
    """The job that wrote the batch, and its unit."""
    job = "/".join(part for part in (letter.dag, letter.job) if part)
    return " ".join(part for part in (clean(job), unit_text(letter.unit)) if part)


@command.command()
@click.argument("batch", type=click.UUID)
@user_command
def show(session: Session, batch: UUID) -> None:
    """Show one dead letter: the line that does not fit, why, and the task that wrote it."""
    letter = session.ask(lambda client: client.call(routes.SHOW_DEAD_BATCH, publish_id=batch))
    _show(session, letter)


def _show(session: Session, letter: DeadBatch) -> None:
    session.say(("Batch ", "dim"), str(letter.publish_id), (" of ", "dim"), letter.dataset)
    where = "" if letter.line is None else f"line {letter.line}: "
    session.show(Padding(Text(f"{where}{clean(letter.reason)}", style="red"), (0, 0, 0, 2)))
    if letter.excerpt:
        session.show(Padding(Text(clean(letter.excerpt), overflow="fold"), (0, 0, 0, 4)))
    records = "" if letter.record_count is None else f", {letter.record_count} rows declared"
    session.say((f"  {letter.size_bytes} bytes{records}, published {ago(letter.published_at)}", "dim"))
    if writer := _writer(letter):
        session.say((f"  by {writer}", "dim"))
    session.say((f"  task {letter.task_id}, attempt {letter.attempt}", "dim"))
    session.hint("see the task that wrote it", "tasks", str(letter.task_id))
    session.hint("once the cause is corrected, replay it", "dlq", "replay", str(letter.publish_id))
    session.hint("or drop its rows for good", "dlq", "drop", str(letter.publish_id))


_NONE = "There is no such dead letter; nothing was changed."
_BATCHES = click.argument("batches", nargs=-1, type=click.UUID, metavar="[BATCH]...")
_DATASET = click.option("--dataset", help="All dead letters of this dataset.")


@command.command()
@_BATCHES
@_DATASET
@user_command
def replay(session: Session, batches: tuple[UUID, ...], dataset: str | None) -> None:
    """Send dead letters to the sink again: the given batches, or all of a dataset. They keep their order."""
    request = _request(batches, dataset)
    reply = session.ask(lambda client: client.call(routes.REPLAY_DEAD_BATCHES, request))
    session.say(f"{count(reply.changed, 'batch')} replayed." if reply.changed else _NONE)
    _more(session, "replay", dataset, reply.changed)
    for name in reply.datasets[:1] if reply.changed else ():
        session.hint("see whether any is refused again", "dlq", "list", "--dataset", name)


@command.command()
@_BATCHES
@_DATASET
@click.option("--yes", is_flag=True, help="Do not ask.")
@user_command
def drop(session: Session, batches: tuple[UUID, ...], dataset: str | None, yes: bool) -> None:
    """Drop dead letters for good: their rows will never be in the table."""
    request = _request(batches, dataset)
    if not yes:
        what = f"every dead letter of {dataset}" if dataset else count(len(batches), "batch")
        click.confirm(f"Drop {what} for good?", abort=True, err=session.as_json)
    reply = session.ask(lambda client: client.call(routes.DROP_DEAD_BATCHES, request))
    session.say(f"{count(reply.changed, 'batch')} dropped." if reply.changed else _NONE)
    _more(session, "drop", dataset, reply.changed)


def _more(session: Session, verb: str, dataset: str | None, changed: int) -> None:
    """Shows how to go on if the call took as many as one call may."""
    if dataset is not None and changed >= MAX_PUBLISHES:
        session.hint("there may be more; continue", "dlq", verb, "--dataset", dataset)


def _request(batches: tuple[UUID, ...], dataset: str | None) -> DeadBatchesRequest:
    if bool(batches) == bool(dataset):
        raise click.UsageError("Give the ids of batches (`trace dlq list` shows them), or --dataset NAME.")
    return DeadBatchesRequest(publish_ids=list(batches) or None, dataset=dataset)
