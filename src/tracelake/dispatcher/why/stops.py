"""What stops tasks from being made, for sources and jobs alike: a pause, a full queue downstream, a quota."""

from tracelake.dispatcher.quotas.book import Overuse
from tracelake.dispatcher.views.pressure import Cause
from tracelake.dispatcher.why.answer import Reason, Sentence, reason


def paused(name: str, text: str | Sentence) -> Reason:
    return reason("source_paused", text, ("let it go on", f"trace resume {name}"), references=[("job", name)])


def pressed(cause: Cause, text: str | Sentence) -> Reason:
    name = cause.dataset or cause.name
    steps = (("see all queues", "trace pressure"), ("see why it is slow", f"trace why {name}"))
    return reason("pressure", text, *steps, references=[("dataset" if cause.dataset else "job", name)])


def over_quota(overuse: Overuse, effect: str) -> Reason:
    use = "has {:,} queued tasks" if overuse.kind == "queued_tasks" else "stores {:,} bytes"
    text = Sentence(
        "{Its} organisation {use} and its quota is {quota:,}, so {effect}.",
        use=use.format(overuse.used),
        quota=overuse.quota,
        effect=effect,
    )
    return reason("over_quota", text, ("see all quotas", "trace quota"))
