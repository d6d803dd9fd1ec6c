"""`trace status` of a stack of another machine: whether it answers, who asks, and what the work needs."""

import msgspec
from rich.text import Text

from tracelake.cli.listing import whole_line
from tracelake.cli.session import make_console, show
from tracelake.cli.text import clean
from tracelake.cli.work_summary import WorkSummary, work_lines
from tracelake.client.stack import Stack


class ContextStatus(msgspec.Struct, frozen=True, kw_only=True):
    context: str
    public_url: str
    query_url: str | None
    """The Query Service; None: the stack had none at the last `trace login`."""
    ready: bool
    """The public API answers, and takes the token."""
    work: WorkSummary


def read_context_status(stack: Stack, work: WorkSummary) -> ContextStatus:
    return ContextStatus(
        context=stack.context or "",
        public_url=stack.public_url,
        query_url=stack.query_url,
        ready=work.error is None,
        work=work,
    )


def print_context_status(status: ContextStatus) -> None:
    console = make_console()
    lines = [f"The context {status.context}: {status.public_url}"]
    if status.query_url is not None:
        lines.append(f"SQL: {status.query_url}")
    if status.ready:
        lines.append("It answers.")
        lines += work_lines(status.work)
    else:
        lines.append(f"It does not serve you: {clean(status.work.error or '').rstrip('.')}.")
        lines.append("see what you use: trace context")
        lines.append(f"log in again: trace login {status.public_url} --token FILE --name {status.context}")
    lines.append("Parts and logs are shown on the machine of the stack.")
    for line in lines:
        show(console, whole_line(Text(line)))
