"""Settings: one frozen, typed object per process, read once.

Later wins: the default below, `HOME/settings.toml`, the environment (`TRACE_` + the name in capitals), what
the command line says. Anything that cannot be understood is a `SettingsError` in one sentence: an unknown
name (with the nearest known one), a value of the wrong type or out of range, two values that contradict each
other. The value of a secret is never repeated, neither in an error nor in `repr`.

`docs/reference/settings.md` is generated from this module.
"""

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from tracelake.adapters.s3.access import S3Access, read_access
from tracelake.settings.home import Home

# Set by Trace for its own children and tasks, or read by the commands of people; not settings.
CHILD_VARIABLE = "TRACE_SUPERVISED"
"""Set for children of `trace up`: their settings come from it alone, whatever became of the file meanwhile."""
_INTERNAL = frozenset({"TRACE_LISTEN_FDS", "TRACE_TASK_CAPABILITY_TOKEN", "TRACE_TOKEN", CHILD_VARIABLE})

SECRET_PREFIX = "TRACE_SECRET_"  # noqa: S105 - of variables
_OTHERS = ("TRACE_RPC_", SECRET_PREFIX)
"""Families of variables that are no settings: see `rpc` and `secrets`."""

LOOPBACK = "127.0.0.1"

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")
_ORG = re.compile(r"[a-z][a-z0-9_]{0,127}")
_HOST = re.compile(r"^[A-Za-z0-9.:_-]{1,253}$")
_S3 = re.compile(r"aws|https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_HTTPS = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[!-~]*)?")
_OTLP = re.compile(r"(https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?)?")
_MACHINE = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_SPARK = re.compile(
    r"local(\[([1-9][0-9]{0,4}|\*)(,[1-9][0-9]{0,4})?\])?|yarn|k8s://[!-~]{1,290}"
    rf"|spark://{_MACHINE}:[0-9]{{1,5}}(,{_MACHINE}:[0-9]{{1,5}})*|sc://{_MACHINE}(:[0-9]{{1,5}})?(/[!-~]{{0,250}})?"
)
_MEMORY = re.compile(r"[1-9][0-9]{0,5}[mgMG]")
_ISOLATION = re.compile(r"org|shared")
_VISIBLE = re.compile(r"[!-~]{1,300}")
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


class SettingsError(Exception):
    """A setting cannot be used; the message names it and says what was expected."""


class _Kind:
    """How one kind of setting is read. `expected` completes the sentence "expected ..."."""

    expected = "text"
    secret = False

    def parse(self, value: object) -> Any:
        """The typed value; raises ValueError for anything else."""
        raise NotImplementedError

    def show(self, value: Any) -> str:
        return str(value)


class _Integer(_Kind):
    def __init__(self, minimum: int, maximum: int = 2**53) -> None:
        self.minimum, self.maximum = minimum, maximum
        self.expected = f"a whole number from {minimum}"
        if maximum < 2**53:
            self.expected += f" to {maximum}"

    def parse(self, value: object) -> int:
        if isinstance(value, str):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        if not self.minimum <= value <= self.maximum:
            raise ValueError
        return value


class _Seconds(_Kind):
    def __init__(self, maximum: float = math.inf) -> None:
        self._maximum = maximum
        self.expected = "a number of seconds above 0" + ("" if maximum == math.inf else f", at most {maximum:g}")

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError from None
        if not math.isfinite(seconds) or not 0 < seconds <= self._maximum:
            raise ValueError
        return seconds

    def show(self, value: Any) -> str:
        return str(int(value)) if float(value).is_integer() else repr(value)


class _Ratio(_Kind):
    expected = "a number from 0 to 1"

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        ratio = float(value)
        if not 0.0 <= ratio <= 1.0:
            raise ValueError
        return ratio


class _Switch(_Kind):
    expected = "true or false"

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in _TRUE | _FALSE:
            raise ValueError
        return value.lower() in _TRUE

    def show(self, value: Any) -> str:
        return "true" if value else "false"


class _Text(_Kind):
    def __init__(self, pattern: re.Pattern[str], expected: str) -> None:
        self.pattern, self.expected = pattern, expected

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise ValueError
        return value

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


class _Dsn(_Kind):
    expected = "an address like postgresql://user:password@host:5432/database"
    secret = True

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not value.startswith(("postgresql://", "postgres://")):
            raise ValueError
        return value


class _Secret(_Kind):
    expected = "visible characters without spaces"
    secret = True

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not _VISIBLE.fullmatch(value):
            raise ValueError
        return value


class _Directory(_Kind):
    expected = "the path of a directory"

    def parse(self, value: object) -> Path:
        if not isinstance(value, (str, Path)) or "\0" in str(value) or not str(value):
            raise ValueError
        try:
            return Path(os.path.abspath(Path(value).expanduser()))  # noqa: PTH100 - resolve() follows links
        except (RuntimeError, OSError):
            raise ValueError from None


class _File(_Directory):
    expected = "the path of a file"

    def show(self, value: Any) -> str:
        return "" if value is None else str(value)


class _Jwks(_File):
    expected = "the path of a file, or an https:// address"

    def parse(self, value: object) -> Any:
        if isinstance(value, str) and "://" in value:
            if not _HTTPS.fullmatch(value):
                raise ValueError
            return value
        return super().parse(value)


def _setting(kind: _Kind, default: Any, doc: str) -> Any:
    return field(default=default, repr=not kind.secret, metadata={"kind": kind, "doc": doc})


def _seconds(default: float, doc: str, *, maximum: float = math.inf) -> float:
    return _setting(_Seconds(maximum), float(default), doc)  # type: ignore[no-any-return]


def _integer(default: int, doc: str, *, minimum: int = 1, maximum: int = 2**53) -> int:
    return _setting(_Integer(minimum, maximum), default, doc)  # type: ignore[no-any-return]


def _port(doc: str) -> int:
    return _integer(0, f"{doc} 0 takes a free one.", minimum=0, maximum=65535)


def _host(default: str | None, doc: str) -> Any:
    return _setting(_Text(_HOST, "a host name or address"), default, doc)


def _name(default: str, doc: str) -> str:
    kind = _Text(_NAME, "1 to 63 lower-case letters, digits, '.', '_' or '-'")
    return _setting(kind, default, doc)  # type: ignore[no-any-return]


def _visible(default: str, doc: str) -> str:
    kind = _Text(_VISIBLE, "1 to 300 visible ASCII characters")
    return _setting(kind, default, doc)  # type: ignore[no-any-return]


def _choice(default: str, choices: tuple[str, ...], doc: str) -> str:
    kind = _Text(re.compile("|".join(choices)), "one of " + ", ".join(choices))
    return _setting(kind, default, doc)  # type: ignore[no-any-return]


def _secret(doc: str) -> str | None:
    secret: str | None = _setting(_Secret(), None, doc)
    return secret


def _dsn(doc: str) -> str | None:
    return _setting(_Dsn(), None, doc)  # type: ignore[no-any-return]


_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting of every process; `Settings.load()` is how one gets it."""

    home: Path = _setting(  # noqa: RUF009 - a frozen field; ruff cannot see that
        _Directory(), Path("~/.trace"), "Where the stack keeps everything it stores."
    )
    log_level: str = _choice("info", ("debug", "info", "warning", "error"), "The least level that is logged.")
    org: str = _setting(
        _Text(_ORG, "a lower-case letter, then lower-case letters, digits or '_'"),
        "default",
        "The organisation that the local credentials belong to.",
    )

    state_dsn: str | None = _dsn("Postgres state of your own instead of the embedded one (with queue_dsn).")
    queue_dsn: str | None = _dsn("The queue database of your own (with state_dsn).")
    data_dsn: str | None = _dsn("Postgres data of your own instead of the embedded one.")
    data_read_dsn: str | None = _dsn(
        "Postgres data of your own by a role that may only read, for Spark and `trace read`; without it, data_dsn."
    )
    state_port: int = _port("Port of the embedded state cluster.")
    data_port: int = _port("Port of the embedded data cluster.")
    state_pool_size: int = _integer(
        12, "Connections of one Dispatcher to the state database; some are reserved for lifecycle calls.", minimum=4
    )

    bind_host: str = _host("127.0.0.1", "The address that the public and the task listener bind, unless they have one.")
    public_bind_host: str | None = _host(None, "The address of the public listener alone.")
    task_bind_host: str | None = _host(None, "The address of the task listener alone.")
    internal_bind_host: str = _host(
        LOOPBACK, "The address of the internal listener. On another than loopback, metrics need a token."
    )
    public_port: int = _port("Port of the public listener.")
    task_port: int = _port("Port of the task listener.")
    internal_port: int = _port("Port of the internal listener.")
    public_connections: int = _integer(512, "Connections that the public listener holds at once.", minimum=8)
    task_connections: int = _integer(1024, "The same for the task listener.", minimum=8)
    internal_connections: int = _integer(1024, "The same for the internal listener.", minimum=8)
    http_address_connections: int = _integer(
        256, "Connections of one address (IPv6: of a /64) to one listener; a reverse proxy is one address.", minimum=4
    )
    http_handshakes: int = _integer(32, "TLS handshakes of one listener at once; more wait for their turn.")
    http_handshake_seconds: float = _seconds(10, "How long a connection may take until its TLS handshake is complete.")
    http_head_seconds: float = _seconds(15, "How long the headers of a request may take.")
    http_body_seconds: float = _seconds(60, "How long the body of a request may take.")
    http_body_bytes_per_second: int = _integer(
        1024, "The least rate of a body, after a quarter of http_body_seconds.", minimum=0
    )
    http_idle_seconds: float = _seconds(75, "How long a connection may be idle between two requests.")

    lease_seconds: float = _seconds(120, "How long a claim holds without a heartbeat, unless the job says.")
    heartbeat_seconds: float = _seconds(30, "How often a worker sends a heartbeat.")
    max_attempts: int = _integer(3, "How often a task is tried, unless the job says.")
    retry_min_seconds: float = _seconds(30, "The wait before the first retry of a failed task.")
    retry_max_seconds: float = _seconds(600, "The longest wait between retries of a failed task.")
    timeout_seconds: float = _seconds(1800, "The hard limit of one attempt, unless the job says.")
    lambda_timeout_seconds: float = _seconds(60, "The same for jobs with `runtime: lambda`.")

    outbox_retry_min_seconds: float = _seconds(1, "The first wait after an outbox row could not be sent.")
    outbox_retry_max_seconds: float = _seconds(300, "The longest wait between tries of an outbox row.")
    outbox_max_tries: int = _integer(20, "Rejections by the transport after which an outbox row fails.")
    relay_poll_seconds: float = _seconds(1.0, "How often the relay looks for rows that nobody announced.")
    relay_batch: int = _integer(256, "Outbox rows of each kind that the relay sends at once.")

    artifact_max_bytes: int = _integer(16 * _MIB, "The largest artifact that may be published.")
    body_max_bytes: int = _integer(_MIB, "The largest body of a single call.")
    batch_body_max_bytes: int = _integer(8 * _MIB, "The largest body of a batch call.")
    http_anonymous_body_bytes: int = _integer(
        16 * _MIB,
        "Bodies that a listener receives at once from callers who have shown no credential; a quarter for one address.",
        minimum=_MIB,
    )
    group_commit_max: int = _integer(128, "Calls gathered into one transaction; 1 turns gathering off.")
    group_commit_lanes: int = _integer(
        2, "Transactions of claims and heartbeats in flight at once, and as many of ordinary calls."
    )
    group_commit_weight: int = _integer(
        512, "Estimated work in one transaction, in rows; a call of more than an eighth of it is heavy.", minimum=8
    )
    group_commit_stall_seconds: float = _seconds(
        120, "How long lifecycle calls may wait without any progress before the liveness check fails."
    )

    reaper_seconds: float = _seconds(1.0, "How often the reaper looks for leases that ran out.")
    retry_seconds: float = _seconds(0.5, "How often the retry loop looks for retries that are due.")
    reconcile_seconds: float = _seconds(60, "How often the reconciler looks for lost wake-ups.")
    reconcile_grace_seconds: float = _seconds(60, "How old a wake-up must be before it counts as lost.")

    jwks_cache_seconds: float = _seconds(300, "How long verifiers may keep the published keys.")
    credential_overlap_seconds: float = _seconds(3600, "How long a rotated token is still accepted.")

    user_issuer: str = _visible("trace", "The issuer (`iss`) of user tokens.")
    user_audience: str = _visible("trace.user", "The audience (`aud`) that user tokens must be for.")
    user_jwks: Path | str | None = _setting(  # noqa: RUF009 - a frozen field; ruff cannot see that
        _Jwks(), None, "The keys of an identity provider's user tokens, instead of the stack's own."
    )
    user_org_claim: str = _visible("org", "The claim of a user token that holds the org.")
    user_roles_claim: str = _visible("roles", "The claim of a user token that lists the roles.")
    user_rate_per_second: int = _integer(50, "Requests that one user may send per second, in the long run.")
    user_rate_burst: int = _integer(100, "Requests that one user may send at once.")

    quota_queued_tasks: int = _integer(200_000, "Queued tasks of one org; 0 is no limit.", minimum=0)
    quota_running_tasks: int = _integer(
        0, "Tasks of one org that run at once; 0 is no limit.", minimum=0, maximum=1_000_000
    )
    quota_units_per_range: int = _integer(
        100_000, "Units of one org that one range is split into; 0 is no limit but the million.", minimum=0
    )
    quota_stored_bytes: int = _integer(0, "Bytes of committed files of one org; 0 is no limit.", minimum=0)
    quota_deploys_per_hour: int = _integer(300, "New versions of one org in an hour; 0 is no limit.", minimum=0)
    quota_dry_runs_per_minute: int = _integer(
        120, "Dry runs of one org in a minute, at each Dispatcher; 0 is no limit.", minimum=0
    )

    document_processes: int = _integer(2, "Processes that read DAG documents; one org has all but one of them at most.")
    document_seconds: float = _seconds(20, "Processor time that reading one DAG document may take.")
    document_queue: int = _integer(8, "Documents of one org that may wait to be read; more are refused with 429.")

    webhook_max_bytes: int = _integer(256 * 1024, "The largest body that a webhook takes.")
    webhook_tolerance_seconds: float = _seconds(300, "How far the time of a signature may be from now, either way.")
    webhook_retention_days: int = _integer(30, "How long a webhook remembers what was delivered: bodies and ids.")
    webhook_rotation_seconds: float = _seconds(86400, "How long a rotated secret of a webhook is still accepted.")
    webhook_rate_per_second: int = _integer(50, "Deliveries that one webhook takes per second, in the long run.")
    webhook_rate_burst: int = _integer(100, "Deliveries that one webhook takes at once.")

    s3_endpoint: str | None = _setting(
        _Text(_S3, "`aws`, or an address like https://host:9000"),
        None,
        "The object store of your own instead of the embedded one: an address, or `aws` for S3 itself.",
    )
    s3_region: str = _setting(_Text(_REGION, "a region"), "us-east-1", "The region of the object store.")
    s3_access_key: str | None = _secret("The key of an identity there; without one, the machine's own is used.")
    s3_secret_key: str | None = _secret("The secret of that key.")
    s3_port: int = _port("Port of the embedded object store.")
    s3_timeout_seconds: float = _seconds(60, "How long a worker waits for one answer of the object store.")
    object_store_sync: bool = _setting(
        _Switch(),
        True,
        "Whether a unit is committed only when its files in the embedded object store are on the disk; if not, they may"
        " be lost in a power cut.",
    )
    s3_retry_seconds: float = _seconds(
        60, "How long a worker asks an object store again that does not answer; then the attempt fails, to be retried."
    )
    staging_retention_days: int = _integer(
        7, "How long files, and scratch, are kept that an attempt wrote and nobody committed."
    )
    trigger_retention_days: int = _integer(
        30, "How long the idempotency keys of triggers are remembered; 0 for ever.", minimum=0
    )
    attempt_retention_days: int = _integer(
        30, "How long replaced attempts and the figures of Spark are kept; 0 for ever.", minimum=0
    )
    task_retention_days: int = _integer(
        90,
        "How long finished tasks are kept that no DAG made; 0 for ever. Those of DAGs go with their version.",
        minimum=0,
    )
    kept_versions: int = _integer(
        20,
        "How many versions of a DAG are kept: the newest, and as many that were active last. Older ones go, with the"
        " tasks and data that only they have; 0 keeps all.",
        minimum=0,
    )
    version_retention_days: int = _integer(
        30, "How long a version is kept after it was active, however many came after it.", minimum=0
    )
    buffer_retention_days: int = _integer(
        7, "How long batches of buffered datasets are kept once they are in their table, or were dropped.", minimum=0
    )
    dataset_bucket: str = _name("trace-datasets", "The bucket of dataset files.")
    scratch_bucket: str = _name("trace-scratch", "The bucket of buffers and scratch files.")
    bundle_bucket: str = _name("trace-bundles", "The bucket of users' uploaded code.")

    workers: int = _integer(1, "Worker processes that `trace up` starts.", minimum=0, maximum=256)
    worker_slots: int = _integer(16, "Tasks that one worker runs at once.", maximum=4096)
    worker_reserved_slots: int = _integer(
        1,
        "Slots of a worker that are kept for orgs with no task in flight; at most an eighth of them.",
        minimum=0,
        maximum=512,
    )
    worker_runtime: str = _name("ecs_platform", "The runtime whose tasks the worker takes.")
    worker_stop_seconds: float = _seconds(
        20,
        "How long work in Spark may take to stop when its task is cancelled or out of time; then the worker ends the"
        " Spark process that it runs in. After twice as long any operator loses its slot.",
    )
    spark_master: str = _setting(
        _Text(
            _SPARK, "a master: local[*], local[4], spark://host:7077, sc://host:15002, yarn or k8s://https://host:443"
        ),
        "local[*]",
        "Where Spark runs; see docs/spark.md.",
    )
    spark_memory: str = _setting(
        _Text(_MEMORY, "an amount like 2g or 512m"),
        "1g",
        "Memory of each Spark driver; in local mode it does the work.",
    )
    spark_isolation: str = _setting(
        _Text(_ISOLATION, "org or shared"),
        "org",
        "Whether each org has a Spark process, or application, of its own in a worker (`org`), or all share one.",
    )
    spark_overhead: str = _setting(
        _Text(_MEMORY, "an amount like 2g or 512m"),
        "2g",
        "Memory that the Spark process of an org may take beyond `spark_memory`; one that takes more is ended.",
    )
    spark_processes: int = _integer(
        4, "Orgs that have a Spark process in one worker at the same time; others wait their turn.", maximum=256
    )
    spark_idle_seconds: float = _seconds(300, "How long the Spark process of an org waits for its next task.")
    spark_spare: bool = _setting(
        _Switch(), True, "Whether a worker keeps one Spark process ready for the next org, to hide the start."
    )
    recorded_chain: Path | None = _setting(  # noqa: RUF009 - a frozen field; ruff cannot see that
        _File(), None, "A recorded chain that `trace up` serves by JSON-RPC; workers know it as the endpoint `default`."
    )
    runtimes_file: Path | None = _setting(  # noqa: RUF009 - a frozen field; ruff cannot see that
        _File(), None, "A TOML file that adds or changes runtimes and limits operators; see operating.md."
    )
    scheduler_poll_seconds: float = _seconds(2, "How often the scheduler looks for new cron sources.")
    scheduler_tolerance_seconds: float = _seconds(
        60, "How late a time of a cron source with `catch_up: none` may be seen and still be fired."
    )
    scheduler_batch: int = _integer(
        100, "Missed times that the scheduler makes up for in one round, for each source.", maximum=10_000
    )
    sinks: int = _integer(0, "Sink processes that `trace up` starts, beside those of workers.", minimum=0, maximum=64)
    worker_sink: bool = _setting(_Switch(), True, "Whether a worker has a sink of buffered datasets beside it.")
    sink_batches: int = _integer(64, "Batches of one dataset that a sink takes at once.", maximum=1000)
    # A sink that has not asked for a minute counts as gone.
    sink_poll_seconds: float = _seconds(2, "How often a sink looks for new buffered datasets.", maximum=30)
    sink_spark_bytes: int = _integer(
        32 * 2**20, "Batches of together at least so many bytes are loaded by Spark; fewer are not worth its price."
    )
    invoke_slots: int = _integer(16, "Attempts of one runtime that a Dispatcher starts itself at once.", maximum=4096)
    queue_visibility_seconds: float = _seconds(60, "How long a received message is hidden from others.")
    queue_max_receives: int = _integer(10, "Receives after which a message becomes a dead letter.")

    otlp_endpoint: str = _setting(
        _Text(_OTLP, "an address like http://127.0.0.1:4318, without a name or password"),
        "",
        "The OpenTelemetry collector that gets traces, over OTLP/HTTP; nothing is traced without it. See tracing.md.",
    )
    otlp_sample_ratio: float = _setting(_Ratio(), 1.0, "The share of traces that is recorded.")

    test_clock: bool = _setting(_Switch(), False, "Allow a replaced `trace_now()`; for tests alone.")

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> "Settings":
        """Read everything once. Overrides that are None count as not given."""
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        from_environment = _read_environment(os.environ if environ is None else environ)
        values: dict[str, Any] = {}
        home = given.get("home", from_environment.get("home", "~/.trace"))
        values["home"] = _parse("home", home, "TRACE_HOME")
        path = Home(values["home"]).settings_file
        supervised = CHILD_VARIABLE in (os.environ if environ is None else environ)
        for source, found in (
            (str(path), {} if supervised else _read_file(path)),
            ("the environment", from_environment),
            ("the command line", given),
        ):
            for name, value in found.items():
                values[name] = _parse(name, value, source)
        settings = cls(**values)
        _check_together(settings)
        return settings

    @property
    def layout(self) -> Home:
        return Home(self.home)

    def to_environment(self) -> dict[str, str]:
        """What a child process needs to read the same settings; secrets stay in their files."""
        return {
            _variable(name): spec.metadata["kind"].show(getattr(self, name))
            for name, spec in _FIELDS.items()
            if not spec.metadata["kind"].secret
        }

    def bind_host_of(self, listener: str) -> str:
        """The address that a listener binds."""
        host: str | None = getattr(self, f"{listener}_bind_host")
        return host or self.bind_host

    @property
    def bind_hosts(self) -> tuple[str, ...]:
        """Every address that some listener binds."""
        return tuple(dict.fromkeys(self.bind_host_of(listener) for listener in ("public", "task", "internal")))

    def resolve_state_dsn(self) -> str:
        return self.state_dsn or _read_dsn("state_dsn", self.layout.state_dsn_file)

    def resolve_queue_dsn(self) -> str:
        return self.queue_dsn or _read_dsn("queue_dsn", self.layout.queue_dsn_file)

    def resolve_data_dsn(self) -> str:
        return self.data_dsn or _read_dsn("data_dsn", self.layout.data_dsn_file)

    def resolve_data_read_dsn(self) -> str:
        """Of a role that reads and cannot write."""
        return self.data_read_dsn or self.data_dsn or _read_dsn("data_read_dsn", self.layout.data_read_dsn_file)

    def resolve_object_store(self) -> S3Access:
        if self.s3_endpoint is None:
            return _read_access(self.layout.object_store_file)
        endpoint = None if self.s3_endpoint == "aws" else self.s3_endpoint
        if self.s3_access_key is None and CHILD_VARIABLE in os.environ:  # secrets reach children by this file
            return _read_access(self.layout.object_store_file)
        return S3Access(endpoint, self.s3_region, self.s3_access_key, self.s3_secret_key)


_FIELDS: dict[str, Field[Any]] = {spec.name: spec for spec in fields(Settings)}


def _variable(name: str) -> str:
    return f"TRACE_{name.upper()}"


def _parse(name: str, value: object, source: str) -> Any:
    kind: _Kind = _FIELDS[_known(name, source)].metadata["kind"]
    try:
        return kind.parse(value)
    except ValueError:
        shown = "" if kind.secret else f", not {_short(value)}"
        raise SettingsError(f"{name} (from {source}): expected {kind.expected}{shown}") from None


def _known(name: str, source: str) -> str:
    if name in _FIELDS:
        return name
    raise SettingsError(f"{_short(name)} (from {source}) is not a setting{_nearest(name, list(_FIELDS))}")


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    variables = {_variable(name): name for name in _FIELDS}
    found = {}
    for variable, value in environ.items():
        if not variable.startswith("TRACE_") or variable in _INTERNAL or variable.startswith(_OTHERS):
            continue
        if variable not in variables:
            raise SettingsError(
                f"the environment variable {_short(variable)} is not a setting{_nearest(variable, list(variables))}"
            )
        # Set to nothing is how a shell or a compose file says "not set".
        if value != "":
            found[variables[variable]] = value
    return found


def _read_file(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_bytes().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise SettingsError(f"{path} is not valid TOML") from None
    if "home" in found:
        raise SettingsError(f"home cannot be set in {path}, which lies inside it; use TRACE_HOME or --home")
    return found


def _check_together(settings: Settings) -> None:
    if (settings.state_dsn is None) != (settings.queue_dsn is None):
        raise SettingsError("state_dsn and queue_dsn belong together: set both, or neither")
    if (settings.s3_access_key is None) != (settings.s3_secret_key is None):
        raise SettingsError("s3_access_key and s3_secret_key belong together: set both, or neither")
    if settings.s3_access_key is not None and settings.s3_endpoint is None:
        raise SettingsError("s3_access_key is for an object store of your own: set s3_endpoint too")
    if settings.user_jwks is not None and settings.user_issuer == _FIELDS["user_issuer"].default:
        raise SettingsError("user_jwks needs user_issuer: the issuer whose keys these are")
    claims = ("iss", "aud", "sub", "iat", "exp", "nbf")
    if settings.user_org_claim == settings.user_roles_claim or {*claims} & {
        settings.user_org_claim,
        settings.user_roles_claim,
    }:
        raise SettingsError("user_org_claim and user_roles_claim must be two claims of their own")
    for smaller, larger in (
        ("heartbeat_seconds", "lease_seconds"),
        ("retry_min_seconds", "retry_max_seconds"),
        ("outbox_retry_min_seconds", "outbox_retry_max_seconds"),
        ("body_max_bytes", "batch_body_max_bytes"),
    ):
        low, high = getattr(settings, smaller), getattr(settings, larger)
        if low > high:
            raise SettingsError(
                f"{smaller} ({low:g}) must not be above {larger} ({high:g}); "
                f"set {smaller} to {high:g} or less, or {larger} to {low:g} or more"
            )


def _read_dsn(name: str, path: Path) -> str:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        raise SettingsError(
            f"{name} is not set and {path} does not exist; start the stack with `trace up`, or set {_variable(name)}"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{path} cannot be read") from None
    return str(_parse(name, text, str(path)))


def _read_access(path: Path) -> S3Access:
    try:
        return read_access(path)
    except FileNotFoundError:
        raise SettingsError(
            f"s3_endpoint is not set and {path} does not exist; start the stack with `trace up`, or set "
            "TRACE_S3_ENDPOINT"
        ) from None
    except (OSError, ValueError):
        raise SettingsError(f"{path} cannot be read") from None


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; see docs/reference/settings.md"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def reference_markdown() -> str:
    """The settings reference page."""
    lines = [
        "# Settings",
        "",
        "Generated from `tracelake.settings`; do not edit by hand (`make docs`).",
        "",
        "Later wins: the default, `HOME/settings.toml` (`name = value`), the environment variable, the",
        "command line. Unknown names and values that do not fit are refused at start.",
        "",
        "| setting | variable | value | default | what it does |",
        "|---|---|---|---|---|",
    ]
    for name, spec in _FIELDS.items():
        kind: _Kind = spec.metadata["kind"]
        default = "" if spec.default is None else f"`{kind.show(spec.default)}`"
        expected = kind.expected.replace("|", "\\|")
        lines.append(f"| `{name}` | `{_variable(name)}` | {expected} | {default} | {spec.metadata['doc']} |")
    return "\n".join(lines) + "\n"
