"""What can go wrong between us and a node. Each says which node (by number) and, where known, which block.

They pass from Spark's tasks to the driver as (kind, message), so a kind is for programs and stays as it is.
"""

from typing import ClassVar

from tracelake.catalogue.context import NonRetryableError


class RpcError(Exception):
    """A node did not give what it was asked for. Another node may; so may the same one later."""

    kind: ClassVar[str] = "rpc_error"
    retryable: ClassVar[bool] = True
    """Whether another attempt of the task may succeed without anybody's help."""

    def __init__(self, message: str, *, host: str = "") -> None:
        super().__init__(f"{host}: {message}" if host else message)
        self.host = host
        self.sent_at: float | None = None
        """When the request was sent that it is about, on the pool's clock."""


class UnavailableError(RpcError):
    """No answer, half an answer, or one that is not JSON-RPC."""

    kind = "rpc_unavailable"


class IncompleteAnswerError(UnavailableError):
    """The answer did not arrive in time or was cut off. A smaller batch may pass."""


class HtmlAnswerError(UnavailableError):
    """A web page with status 200: a proxy, a maintenance page, or the wrong address."""


class LateBlockError(UnavailableError):
    """The node, or the backend that answered for it, does not have the block yet."""

    kind = "rpc_late_block"


class AbandonedError(RpcError):
    """Nobody wants the answer any more: another part of the same work has failed."""

    kind = "rpc_abandoned"


class RateLimitedError(RpcError):
    kind = "rpc_rate_limited"

    def __init__(self, message: str, *, host: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, host=host)
        self.retry_after = retry_after


class RefusedError(RpcError):
    """The node does not want us: a wrong key or path. Waiting does not help, another node may."""

    kind = "rpc_refused"


class QuotaExhaustedError(RefusedError):
    """The provider's plan is used up or unpaid. Only its owner can change that."""

    kind = "rpc_quota_exhausted"
    retryable = False


class TooLargeError(RpcError):
    """The node would answer a smaller batch."""

    kind = "rpc_too_large"

    def __init__(self, message: str, *, host: str = "", limit: int | None = None) -> None:
        super().__init__(message, host=host)
        self.limit = limit
        """The largest batch, where the node named it."""


class LogRangeError(RpcError):
    """The node would answer a query of logs for fewer blocks."""

    kind = "rpc_too_large"

    def __init__(
        self, message: str, *, host: str = "", limits: tuple[int, ...] = (), proposed: int | None = None
    ) -> None:
        super().__init__(message, host=host)
        self.limits = limits
        """Numbers that the node named, one of which may be the most blocks."""
        self.proposed = proposed
        """Blocks of the range that the node proposed."""


class BatchRefusedError(RpcError):
    """The node answers single calls, but not this batch."""

    kind = "rpc_batch_refused"

    def __init__(self, message: str, *, host: str = "", certain: bool = False) -> None:
        super().__init__(message, host=host)
        self.certain = certain
        """The node named batches as the reason."""


class NoSuchMethodError(RpcError):
    kind = "rpc_no_such_method"

    def __init__(self, message: str, *, host: str = "", certain: bool = True) -> None:
        super().__init__(message, host=host)
        self.certain = certain
        """By the code that JSON-RPC has for it. Otherwise by words, which a second refusal has to confirm."""


class NoTracesError(RefusedError):
    """The node has no method that traces a block. Another node may."""

    kind = "rpc_no_traces"
    retryable = False


class NoStateError(RefusedError):
    """The node does not keep the state of a block that far back. Another node may."""

    kind = "rpc_no_state"
    retryable = False


class AnswerError(RpcError):
    """The node answered, and the answer is wrong."""

    kind = "rpc_malformed_answer"


class MissingAnswerError(AnswerError):
    """Null, or nothing at all, where there must be something."""

    kind = "rpc_missing_answer"


class WrongBlockError(AnswerError):
    kind = "rpc_wrong_block"


class BrokenChainError(AnswerError):
    """A block does not follow the one before it: a node that errs, or a chain that was reorganised meanwhile."""

    kind = "rpc_broken_chain"


class WrongReceiptsError(AnswerError):
    """Receipts that are not those of the block's transactions."""

    kind = "rpc_wrong_receipts"


class ForeignReceiptsError(AnswerError):
    """Receipts, transactions or logs that say they are of another block."""

    kind = "rpc_foreign_receipts"


class WrongTracesError(AnswerError):
    """Traces that are not those of the block's transactions, or not all of them."""

    kind = "rpc_wrong_traces"


class ForeignTracesError(AnswerError):
    """Traces that say they are of another block."""

    kind = "rpc_foreign_traces"


class WrongHashError(AnswerError):
    """A header, transactions or receipts that do not have the hash or the root that they should have."""

    kind = "rpc_wrong_hash"


class LogGapError(AnswerError):
    kind = "rpc_log_gap"


class BeyondHeadError(RpcError):
    """The range is not there yet, or not yet deep enough."""

    kind = "beyond_head"


class ReorganisedError(RpcError):
    """The chain changed while its range was read; read again, it is of one piece."""

    kind = "reorganised"


class ChainMismatchError(NonRetryableError):
    """A node of another chain. Nothing of it may be kept, and it will be of another chain tomorrow."""

    kind: ClassVar[str] = "chain_mismatch"


class ValueTooLargeError(NonRetryableError):
    """A value that its column cannot hold."""

    kind: ClassVar[str] = "value_too_large"


class NoEndpointError(NonRetryableError):
    kind: ClassVar[str] = "no_rpc_endpoint"


class IngestError(Exception):
    """What a Spark task met, said again by the driver; another attempt may succeed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
