"""`trace dlq`: batches of buffered datasets that could not be taken."""

from collections.abc import Sequence
from uuid import UUID

import click
from rich.padding import Padding
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import cursor_option, limit_option
from tracelake.cli.paging import collect
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, count, unit_text
from tracelake.wire import routes
from tracelake.wire.buffers import MAX_PUBLISHES, DeadBatch, DeadBatchesRequest

_READABLE = 48
"""Characters beside each other that a reason needs to be read as a sentence."""


@click.group()
def command() -> None:
    """Batches that no sink could take, with the line that was wrong and why.

    One bad row refuses its whole batch, and nothing of it is in the table. Mend the cause (a column that is missing, a
    writer that is wrong), then replay the batch: the table ends as if it had been right at first.

    \b
    Examples:
      trace dlq list
      trace dlq show 0192d6a2-...
      trace dlq replay --dataset large_transfers
      trace dlq drop 0192d6a2-...
    """


@command.command("list")
@click.option("--dataset", help="Only of this dataset.")
@limit_option(50)
@cursor_option
@user_command
def list_letters(session: Session, dataset: str | None, limit: int, cursor: str | None) -> None:
    """List dead letters, oldest first."""
    reply = session.ask(
        lambda client: collect(client, routes.LIST_DEAD_BATCHES, "letters", limit=limit, cursor=cursor, dataset=dataset)
    )
    if not reply.letters and not reply.buffered:
        session.say(f"{dataset} is not buffered: nobody sends it batches, so it has no dead letters.")
        session.hint("see which datasets are", "datasets")
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
            session.hint("try all of them again once the cause is mended", "dlq", "replay", "--dataset", dataset)
            session.hint("or do without their rows", "dlq", "drop", "--dataset", dataset)


def letters_listing(letters: Sequence[DeadBatch]) -> Listing:
    listing = Listing(
        [
            ListingColumn("batch", whole=True),
            ListingColumn("dataset"),
            ListingColumn("died", whole=True),
            ListingColumn("written by"),
            ListingColumn("line", right=True),
            ListingColumn("why", least=_READABLE),
        ]
    )
    for letter in letters:
        listing.add(
            str(letter.publish_id), letter.dataset, ago(letter.died_at), _writer(letter), letter.line, letter.reason
        )
    return listing


def _writer(letter: DeadBatch) -> str:
    """The job and its unit."""
    job = "/".join(part for part in (letter.dag, letter.job) if part)
    return " ".join(part for part in (clean(job), unit_text(letter.unit)) if part)


@command.command()
@click.argument("batch", type=click.UUID)
@user_command
def show(session: Session, batch: UUID) -> None:
    """Show one dead letter: the line, what was wrong with it, who wrote it."""
    letter = session.ask(lambda client: client.call(routes.SHOW_DEAD_BATCH, publish_id=batch))
    _show(session, letter)


def _show(session: Session, letter: DeadBatch) -> None:
    session.say(("Batch ", "dim"), str(letter.publish_id), (" of ", "dim"), letter.dataset)
    where = "" if letter.line is None else f"line {letter.line}: "
    session.show(Padding(Text(f"{where}{clean(letter.reason)}", style="red"), (0, 0, 0, 2)))
    if letter.excerpt:
        session.show(Padding(Text(clean(letter.excerpt), overflow="fold"), (0, 0, 0, 4)))
    records = "" if letter.record_count is None else f", {letter.record_count} records said"
    session.say((f"  {letter.size_bytes} bytes{records}, published {ago(letter.published_at)}", "dim"))
    if writer := _writer(letter):
        session.say((f"  by {writer}", "dim"))
    session.say((f"  task {letter.task_id}, attempt {letter.attempt}", "dim"))
    session.hint("see who wrote it", "tasks", str(letter.task_id))
    session.hint("try it again once the cause is mended", "dlq", "replay", str(letter.publish_id))
    session.hint("or do without its rows", "dlq", "drop", str(letter.publish_id))


_BATCHES = click.argument("batches", nargs=-1, type=click.UUID, metavar="[BATCH]...")
_DATASET = click.option("--dataset", help="Every one of this dataset.")


@command.command()
@_BATCHES
@_DATASET
@user_command
def replay(session: Session, batches: tuple[UUID, ...], dataset: str | None) -> None:
    """Give dead letters to the sinks again, under their old numbers: these, or every one of a dataset."""
    request = _request(batches, dataset)
    reply = session.ask(lambda client: client.call(routes.REPLAY_DEAD_BATCHES, request))
    session.say(f"{count(reply.changed, 'batch')} will be tried again." if reply.changed else "There was none.")
    _more(session, "replay", dataset, reply.changed)
    for name in reply.datasets[:1] if reply.changed else ():
        session.hint("see in a moment whether it was refused again", "dlq", "list", "--dataset", name)


@command.command()
@_BATCHES
@_DATASET
@click.option("--yes", is_flag=True, help="Do not ask.")
@user_command
def drop(session: Session, batches: tuple[UUID, ...], dataset: str | None, yes: bool) -> None:
    """Forget dead letters for good: their rows will never be in the table."""
    request = _request(batches, dataset)
    if not yes:
        what = f"every dead letter of {dataset}" if dataset else count(len(batches), "batch")
        click.confirm(f"Forget {what} for good?", abort=True, err=session.as_json)
    reply = session.ask(lambda client: client.call(routes.DROP_DEAD_BATCHES, request))
    session.say(f"{count(reply.changed, 'batch')} dropped." if reply.changed else "There was none.")
    _more(session, "drop", dataset, reply.changed)


def _more(session: Session, verb: str, dataset: str | None, changed: int) -> None:
    """One call takes so many and no more."""
    if dataset is not None and changed >= MAX_PUBLISHES:
        session.hint("there may be more of them", "dlq", verb, "--dataset", dataset)


def _request(batches: tuple[UUID, ...], dataset: str | None) -> DeadBatchesRequest:
    if bool(batches) == bool(dataset):
        raise click.UsageError("Name batches, or a dataset with --dataset.")
    return DeadBatchesRequest(publish_ids=list(batches) or None, dataset=dataset)
