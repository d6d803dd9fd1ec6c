"""`trace docs`: one static page about the datasets and jobs of a DAG, or of all DAGs of the org."""

from pathlib import Path

import click

from tracelake.cli.docs_page import DocsData, DocsPage
from tracelake.cli.export import check_target, new_file
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import count, current_time
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.jobs import JobsReply

_ENDINGS = (".html", ".htm")


@click.command()
@click.argument("dag", required=False)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("trace-docs.html"),
    show_default=True,
    help="Write the page to this file.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@user_command
def command(session: Session, dag: str | None, output: Path, force: bool) -> None:
    """Write one page about the datasets and jobs of DAG, or of all DAGs: graphs, columns, checks, how to read them.

    The page is one HTML file without scripts, which needs no network: send it to somebody, or print it. It shows the
    active versions, as they are now.

    \b
    Examples:
      trace docs
      trace docs token_flows --output flows.html --force
      trace docs --json
    """
    if not session.as_json:
        check_target(output, force=force, endings=_ENDINGS)
    data = session.ask(lambda client: gather(client, dag), dag=dag)
    with new_file(output, force=force, endings=_ENDINGS) as path:
        path.write_text(DocsPage(data).render(), encoding="utf-8")
    session.say(f"{count(len(data.dags), 'DAG')} and {count(len(data.datasets), 'dataset')} in {output}.")
    if not data.dags:
        session.hint_first_dag("deploy a DAG")


async def gather(client: UserClient, dag: str | None) -> DocsData:
    """Asks for the active version of each DAG and for each published dataset that its jobs write or read."""
    caller = await client.call(routes.WHOAMI)
    if dag is None:
        names = [row.name for row in (await client.call(routes.LIST_DAGS)).dags if row.active_version is not None]
    else:
        names = [dag]
    dags: list[JobsReply] = [await client.call(routes.LIST_JOBS, dag=name) for name in names]
    rows = [job for jobs in dags for job in jobs.jobs]
    mentioned = {edge.dataset for job in rows for edge in job.inputs}
    mentioned |= {output.dataset for job in rows for output in job.outputs}
    details = []
    for row in (await client.call(routes.LIST_DATASETS)).datasets:
        if row.published and (dag is None or row.name in mentioned):
            try:
                details.append(await client.call(routes.SHOW_DATASET, name=row.name))
            except TraceError as error:
                if error.code != "dataset_not_found":  # removed a moment ago
                    raise
    return DocsData(org=caller.org, made_at=current_time(), dags=dags, datasets=details)
