"""The config of `webhook_rows`: how the body of a delivery becomes rows."""

from collections.abc import Sequence
from typing import ClassVar

from tracelake.catalogue.feeds.mapping import FeedConfig
from tracelake.catalogue.spec import WORKERS, ConfigFieldError, OperatorSpec


class WebhookRowsConfig(FeedConfig, frozen=True, kw_only=True):
    specials: ClassVar[frozenset[str]] = frozenset({"row", "key", "record", "delivery", "number", "received_at"})

    def check_inputs(self, names: Sequence[str | None]) -> None:
        if len(names) != 1:
            raise ConfigFieldError(
                "columns", f"deliveries are of one webhook source, and the job has {len(names)} inputs"
            )


SPEC = OperatorSpec(
    "webhook_rows",
    WebhookRowsConfig,
    "Turns the deliveries of a webhook source into rows.",
    runtimes=WORKERS,
    output_storage="s3",
    checks="unit",
    reads_deliveries=True,
)
