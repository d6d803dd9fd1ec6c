"""`trace webhook`: the address and the secret of a webhook source, with an example of a signed call."""

import shlex

import click
import msgspec
from rich.text import Text

from tracelake.cli.listing import fields, whole_line
from tracelake.cli.names import resolve_job
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
@click.option(
    "--rotate", is_flag=True, help="Create a new secret; the old one works for webhook_rotation_seconds more."
)
@user_command
def command(session: Session, target: str, rotate: bool) -> None:
    """Show the address and the secret of a webhook, with a call that can be copied. For admins.

    The audit log records who looked. After a leak rotate twice: the second rotation ends the leaked secret at once.

    \b
    Examples:
      trace webhook pools/alerts
      trace webhook pools/alerts --rotate
      trace webhook pools/alerts --json | jq -r '.url, .ca_file, .secret'
    """
    dag, job, reply = session.run(lambda client: _ask(client, target, rotate=rotate))
    stack = session.stack
    url = f"{stack.public_url_for_others}/v1/webhooks/{reply.path}"
    session.answer(msgspec.to_builtins(reply) | {"url": url, "ca_file": stack.ca_file or None})
    rows = [("webhook", f"{dag}/{job}"), ("path", reply.path), ("url", url), ("secret", reply.secret)]
    if reply.previous_until is not None:
        rows.append(("old secret valid until", moment(reply.previous_until)))
    session.show(fields([(name, whole_line(Text(clean(text)))) for name, text in rows]))
    session.say("To deliver something to it, in a shell:")
    for line in example(url, stack.ca_file, reply):
        session.show(whole_line(Text(clean(line), style="bold")))
    session.hint("see the tasks that follow", "tasks", "--dag", dag, "--watch")


async def _ask(client: UserClient, target: str, *, rotate: bool) -> tuple[str, str, WebhookReply]:
    dag, job = await resolve_job(client, target)
    try:
        reply = await client.call(routes.SHOW_WEBHOOK, dag=dag, job=job)
    except TraceError as error:
        if error.code != "webhook_not_found":
            raise
        # The advice of the catalogue is about the path of a delivery.
        message = f"{dag}/{job} is not a webhook source of an active version; `trace sources` lists the sources."
        raise RemoteError(error.code, error.status, message) from None
    if rotate:
        reply = await client.call(routes.ROTATE_WEBHOOK, dag=dag, job=job, after=reply.rotation)
    return dag, job, reply


def example(url: str, ca_file: str, reply: WebhookReply) -> list[str]:
    """The lines of a delivery for a shell with `openssl` and `curl`; each run is a new delivery."""
    ca_option = f"--cacert {shlex.quote(ca_file)} " if ca_file else ""
    return [
        f"secret={shlex.quote(reply.secret)} body={shlex.quote(_BODY)} t=$(date +%s); id=example-$t-$$",
        'signature=$(printf %s "$t.$id.$body" | openssl dgst -sha256 -hmac "$secret" -r | cut -d" " -f1)',
        f'curl {ca_option}--header "{reply.delivery_header}: $id" '
        f'--header "{reply.signature_header}: t=$t,v1=$signature" --data-binary "$body" {shlex.quote(url)}',
    ]
