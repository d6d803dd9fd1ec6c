"""The config of `decode_logs`, and the columns that follow from it. Invalid events are refused at deploy."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from tracelake.catalogue.abi import AbiType, Array, Bytes, Event, EventParameter, Plain, Tuple, parse_event, read_event
from tracelake.catalogue.spec import WORKERS, JobInput, OperatorConfig, OperatorSpec, ResultColumns, Writes
from tracelake.catalogue.sql.columns.types import parse_type
from tracelake.model.columns import UNKNOWN_COLUMNS, DatasetColumn, DatasetColumns

BUILT_IN = {
    "erc20.Transfer": "Transfer(address indexed from, address indexed to, uint256 value)",
    "erc20.Approval": "Approval(address indexed owner, address indexed spender, uint256 value)",
    "erc721.Transfer": "Transfer(address indexed from, address indexed to, uint256 indexed tokenId)",
    "erc721.Approval": "Approval(address indexed owner, address indexed approved, uint256 indexed tokenId)",
    "erc721.ApprovalForAll": "ApprovalForAll(address indexed owner, address indexed operator, bool approved)",
    "erc1155.TransferSingle": "TransferSingle(address indexed operator, address indexed from, address indexed to,"
    " uint256 id, uint256 value)",
    "erc1155.TransferBatch": "TransferBatch(address indexed operator, address indexed from, address indexed to,"
    " uint256[] ids, uint256[] values)",
    "erc1155.ApprovalForAll": "ApprovalForAll(address indexed account, address indexed operator, bool approved)",
    "erc1155.URI": "URI(string value, uint256 indexed id)",
}
TOKEN_TRANSFERS = ("erc20.Transfer", "erc721.Transfer", "erc1155.TransferSingle", "erc1155.TransferBatch")
"""The events that are decoded by default, into one table."""

COMMON_COLUMNS = ("block_number", "transaction_index", "log_index", "transaction_hash", "address", "chain_id", "event")
TRANSFER_COLUMNS = (
    ("token", "binary"),
    ("standard", "string"),
    ("event", "string"),
    ("operator_address", "binary"),
    ("from_address", "binary"),
    ("to_address", "binary"),
    ("token_id_binary", "binary"),
    ("token_id_string", "string"),
    ("amount_binary", "binary"),
    ("amount_string", "string"),
    ("amount_f64", "double"),
    ("batch_index", "int"),
)
"""The columns of token transfers besides those of the log, with Spark's types."""
_TAKEN = frozenset({*COMMON_COLUMNS, "batch_index"})
LONG, DECIMAL = "bigint", "decimal(20,0)"

EventText = Annotated[str, Meta(min_length=1, max_length=4000)]
Address = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{40}$")]


class DecodeLogsConfig(OperatorConfig, frozen=True, kw_only=True):
    events: Annotated[list[EventText | dict[str, Any]], Meta(max_length=100)] = []
    """Signatures, items of a JSON ABI, or names of built-in events; none: the token transfers, in one table."""
    addresses: Annotated[list[Address], Meta(max_length=10_000)] = []
    """Only logs of these contracts; empty: logs of all."""
    keep_other: bool = False
    """Logs of other events go to the second output as well."""

    def __post_init__(self) -> None:
        check_events(self.read_events())

    def writes(self) -> Writes:
        return Writes(2, 2, "keep_other: true", "keep_other") if self.keep_other else Writes(2)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns | None:
        """Output 0: columns of the logs, as the input has them, then those of the events. Output 1: the logs, and why
        each is there."""
        logs = inputs[0].columns if inputs else UNKNOWN_COLUMNS
        own: Sequence[tuple[str, str]]
        if output_index:
            log_columns, own = logs.columns, [("reason", "string"), ("detail", "string")]
        else:
            names = COMMON_COLUMNS if self.events else tuple(name for name in COMMON_COLUMNS if name != "address")
            by_name = {column.name: column for column in logs.columns}
            log_columns = tuple(by_name[name] for name in names if name in by_name)
            own = [("event", "string"), *all_columns(self.read_events())] if self.events else TRANSFER_COLUMNS
        own_columns = tuple(DatasetColumn(name=name, type=str(parse_type(kind))) for name, kind in own)
        return ResultColumns(DatasetColumns(columns=(*log_columns, *own_columns), complete=logs.complete))

    def read_events(self) -> list[Event]:
        return [_read(each) for each in self.events]


def _read(source: str | dict[str, Any]) -> Event:
    if isinstance(source, str):
        if source in BUILT_IN:
            return built_in(source)
        if "(" not in source:
            names = ", ".join(BUILT_IN)
            raise ValueError(f"there is no built-in event {source[:80]!r}; there are {names}")
    return read_event(source)


def built_in(name: str) -> Event:
    return parse_event(BUILT_IN[name])


def check_events(events: Sequence[Event]) -> None:
    """Checks that each log fits at most one event, and that events with a common column agree on its type."""
    earlier: set[tuple[str, int]] = set()
    types: dict[str, tuple[str, str]] = {}
    for event in events:
        if (event.signature, event.topics) in earlier:
            raise ValueError(
                f"two events have the signature {event.signature} and {event.topics} topics, so a log would fit both"
            )
        earlier.add((event.signature, event.topics))
        own: set[str] = set()
        for name, kind in event_columns(event):
            if name.lower() in own:
                raise ValueError(f"{event.name} would have two columns {name}: give its parameters other names")
            own.add(name.lower())
            if types.setdefault(name.lower(), (name, kind)) != (name, kind):
                raise ValueError(f"the events disagree on the column {name}: rename a parameter, or use two jobs")


def all_columns(events: Sequence[Event]) -> list[tuple[str, str]]:
    """The columns of all parameters, each once, in order."""
    return list(dict.fromkeys(column for event in events for column in event_columns(event)))


def event_columns(event: Event) -> list[tuple[str, str]]:
    return [column for parameter in event.parameters for column in parameter_columns(parameter)]


def column_name(parameter: EventParameter) -> str:
    return f"arg_{parameter.name}" if parameter.name.lower() in _TAKEN else parameter.name


def parameter_columns(parameter: EventParameter) -> list[tuple[str, str]]:
    """Names with Spark's types. A number of more than 64 bits has columns for bytes, text and a rounded double."""
    name = column_name(parameter)
    if parameter.indexed and not isinstance(parameter.type, Plain):
        return [(f"{name}_hash", "binary")]
    if is_wide(parameter.type):
        return [(f"{name}_binary", "binary"), (f"{name}_string", "string"), (f"{name}_f64", "double")]
    return [(name, spark_type(parameter.type))]


def is_wide(abi_type: AbiType) -> bool:
    return isinstance(abi_type, Plain) and abi_type.kind in ("uint", "int") and abi_type.size > 64


def spark_type(abi_type: AbiType) -> str:
    """Inside arrays and tuples, numbers of more than 64 bits are text."""
    match abi_type:
        case Plain("bool", _):
            return "boolean"
        case Plain("uint", 64):
            return DECIMAL
        case Plain("uint" | "int", size):
            return "string" if size > 64 else LONG
        case Plain():
            return "binary"
        case Bytes(text):
            return "string" if text else "binary"
        case Array(element, _):
            return f"array<{spark_type(element)}>"
        case Tuple(names, types):
            fields = (f"`{name}`:{spark_type(kind)}" for name, kind in zip(names, types, strict=True))
            return f"struct<{','.join(fields)}>"


SPEC = OperatorSpec(
    "decode_logs",
    DecodeLogsConfig,
    "Decodes logs to typed columns by the ABI of their events; by default, token transfers.",
    runtimes=WORKERS,
    output_storage="s3",
    windows="blocks",
    only_files=True,
    checks="sql",
)
