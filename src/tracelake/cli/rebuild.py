"""`trace rebuild`: the outputs of a job are made again after another DAG rebuilt what it reads."""

import click

from tracelake.cli.missing import explained
from tracelake.cli.session import Session, user_command
from tracelake.wire import routes


@click.command()
@click.argument("target", metavar="DAG/JOB")
@user_command
def command(session: Session, target: str) -> None:
    """Make the stale outputs of DAG/JOB again, unit by unit.

    Outputs are stale when another DAG rebuilt a dataset that the job reads: units that were made before are of the
    older generation. `trace datasets` marks them, and `trace why DATASET` says why. What is made from them follows.

    \b
    Example:
      trace rebuild reports/hourly
    """
    dag, _, job = target.partition("/")
    if not dag or not job:
        raise click.UsageError("Name the job as DAG/JOB, such as `reports/hourly`.")
    reply = session.ask(
        lambda client: explained(client, client.call(routes.REBUILD, dag=dag, job=job), dag=dag, job=job)
    )
    state = "are being made again already" if reply.duplicate else "are made again"
    session.say(f"The outputs of {reply.dag}/{reply.job} {state}, from the current {reply.because}.")
    session.hint("see it run", "tasks", "--dag", reply.dag, "--job", reply.job)
