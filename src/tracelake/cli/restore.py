"""`trace restore`: the state database of a home is replaced by a dump."""

from pathlib import Path

import click
import msgspec

from tracelake.cli.json_output import json_option
from tracelake.cli.options import home_option
from tracelake.settings import Settings
from tracelake.settings.configs import dispatcher_config
from tracelake.stack import dumps
from tracelake.stack.restore import Report, restore


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True))
@home_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(file: Path, home: Path | None, yes: bool, as_json: bool) -> None:
    """Replace the state database of a home by the dump in FILE. The stack must be down.

    Everything that was accepted after the dump is gone: deploys, events, tasks, deliveries, what people decided.
    Attempts that still run somewhere are refused from now on and their tasks are tried again; ids that were given out
    are not given out again. The home may be a new one. A dump that cannot be used changes nothing.

    \b
    Examples:
      trace down && trace restore state.dump && trace up
      trace restore state.dump --home ./elsewhere --yes
    """
    settings = Settings.load({"home": home})
    config = dispatcher_config(settings)
    dump = dumps.inspect(file)
    if not yes:
        click.confirm(
            f"Replace the state of {settings.home} by {file}, a dump of {dump.made_at}? What came after it is lost.",
            abort=True,
            err=as_json,
        )
    report = restore(settings, dump, config)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        _tell(report, settings)


def _tell(report: Report, settings: Settings) -> None:
    done = report.rewound
    click.echo(f"The state of {settings.home} is that of {report.file}, a dump of {report.made_at}:")
    click.echo(f"  {report.tasks:>9,}  tasks, and {report.events:,} events")
    click.echo(
        f"  {done.leases_ended:>9,}  leases ended; their tasks are tried again, unless they were being cancelled"
    )
    click.echo(f"  {done.attempts_moved:>9,}  tasks go on with attempt numbers that nobody was given")
    click.echo(f"  {report.wake_ups:>9,}  wake-ups written; {report.messages_dropped:,} messages of the queue dropped")
    if report.leftovers_dropped:
        click.echo(f"Dropped first, left by a restore that was killed: {', '.join(report.leftovers_dropped)}.")
    if report.migrated:
        click.echo(f"  {len(report.migrated):>9,}  migrations applied")
    if not done.continued:
        click.echo("What it replaced is not what became of this dump, so ids go on far above those of both.")
        click.echo(
            "Secrets of webhooks that were rotated elsewhere after the dump are the old ones again: rotate them."
        )
    click.echo(f"Next: `trace up --home {settings.home}`, then `trace status` and `trace sources`.")
