"""`trace webhook`: where a source is called, and how a call is signed."""

import shlex

import click
import msgspec
from rich.text import Text

from tracelake.cli.listing import fields, whole_line
from tracelake.cli.naming import find_job
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean, moment
from tracelake.client.errors import RemoteError
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.webhooks import WebhookReply

_BODY = '{"hello": "world"}'


@click.command()
@click.argument("target", metavar="DAG/JOB")
@click.option("--rotate", is_flag=True, help="Make a new secret; the old one goes on working for a while.")
@user_command
def command(session: Session, target: str, rotate: bool) -> None:
    """Show the address and the secret of a webhook, with a call that can be copied. For admins.

    A look at the secret is written to the audit log. After a leak rotate twice: the second time ends the secret that
    leaked at once.

    \b
    Examples:
      trace webhook pools/alerts
      trace webhook pools/alerts --rotate
      trace webhook pools/alerts --json | jq -r '.url, .ca_file, .secret'
    """
    dag, job, reply = session.run(lambda client: _ask(client, target, rotate=rotate))
    stack = session.stack
    url = f"{stack.public_url}/v1/webhooks/{reply.path}"
    session.answer(msgspec.to_builtins(reply) | {"url": url, "ca_file": stack.ca_file})
    rows = [("webhook", f"{dag}/{job}"), ("path", reply.path), ("url", url), ("secret", reply.secret)]
    if reply.previous_until is not None:
        rows.append(("old secret until", moment(reply.previous_until)))
    session.show(fields([(name, whole_line(Text(clean(text)))) for name, text in rows]))
    session.say("Send something to it:")
    for line in example(url, stack.ca_file, reply):
        session.show(whole_line(Text(clean(line), style="bold")))
    session.hint("see what it set off", "tasks", "--dag", dag, "--watch")


async def _ask(client: UserClient, target: str, *, rotate: bool) -> tuple[str, str, WebhookReply]:
    dag, slash, job = target.partition("/")
    if not slash:
        dag, job = await find_job(client, target)
    try:
        reply = await client.call(routes.SHOW_WEBHOOK, dag=dag, job=job)
    except TraceError as error:
        if error.code != "webhook_not_found":
            raise
        # Nobody has named a path here, so what the catalogue advises would mislead.
        message = f"{dag}/{job} is no webhook source of an active version; `trace sources` shows which ones there are."
        raise RemoteError(error.code, error.status, message) from None
    if rotate:
        reply = await client.call(routes.ROTATE_WEBHOOK, dag=dag, job=job, after=reply.rotation)
    return dag, job, reply


def example(url: str, ca_file: str, reply: WebhookReply) -> list[str]:
    """Lines for a shell with `openssl` and `curl`; each run is a delivery of its own."""
    return [
        f"secret={shlex.quote(reply.secret)} body={shlex.quote(_BODY)} t=$(date +%s); id=example-$t-$$",
        'signature=$(printf %s "$t.$id.$body" | openssl dgst -sha256 -hmac "$secret" -r | cut -d" " -f1)',
        f'curl --cacert {shlex.quote(ca_file)} --header "{reply.delivery_header}: $id" '
        f'--header "{reply.signature_header}: t=$t,v1=$signature" --data-binary "$body" {shlex.quote(url)}',
    ]
