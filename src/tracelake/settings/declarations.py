"""Every setting, declared once: its name, type, default, what it takes and what it does.

Loading (`loading`), the reference page (`reference`) and the config objects of the parts (`configs`) follow from it.
Later wins: the default below, `HOME/settings.toml`, the environment (`TRACE_` + the name in capitals), what
the command line says. The value of a secret is never repeated, neither in an error nor in `repr`.
"""

# ruff: noqa: RUF009 - the calls declare fields, which ruff cannot see

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from tracelake.adapters.s3.access import S3Access, read_access
from tracelake.settings.home import Home
from tracelake.settings.kinds import (
    choice,
    directory,
    dsn,
    file,
    host,
    integer,
    jwks,
    memory,
    name,
    port,
    ratio,
    recording,
    seconds,
    secret,
    switch,
    text,
    visible,
)
from tracelake.settings.loading import CHILD_VARIABLE, SettingsError, load_values, parse, variable_of

LOOPBACK = "127.0.0.1"

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_MACHINE = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_SPARK = (
    r"local(\[([1-9][0-9]{0,4}|\*)(,[1-9][0-9]{0,4})?\])?|yarn|k8s://[!-~]{1,290}"
    rf"|spark://{_MACHINE}:[0-9]{{1,5}}(,{_MACHINE}:[0-9]{{1,5}})*|sc://{_MACHINE}(:[0-9]{{1,5}})?(/[!-~]{{0,250}})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of every process; `Settings.load()` reads them."""

    home: Path = directory(Path("~/.trace"), "Where the stack keeps everything it stores.")
    log_level: str = choice("info", ("debug", "info", "warning", "error"), "The minimum level of log messages.")
    org: str = text(
        "default",
        r"[a-z][a-z0-9_]{0,127}",
        "a lower-case letter, then lower-case letters, digits or '_'",
        "The organisation that the local credentials belong to.",
    )

    state_dsn: str | None = dsn("Your own state database instead of the embedded one (with queue_dsn).")
    queue_dsn: str | None = dsn("Your own queue database (with state_dsn).")
    data_dsn: str | None = dsn("Your own data database instead of the embedded one.")
    data_read_dsn: str | None = dsn(
        "Your own data database with a read-only role, for Spark and `trace read`; without it, data_dsn."
    )
    state_port: int = port("Port of the embedded state cluster.")
    data_port: int = port("Port of the embedded data cluster.")
    state_pool_size: int = integer(
        12, "Connections of one Dispatcher to the state database; some are reserved for lifecycle calls.", minimum=4
    )

    bind_host: str = host("127.0.0.1", "The address of the public and the task listener, unless set for each.")
    public_bind_host: str | None = host(None, "The address of the public listener.")
    task_bind_host: str | None = host(None, "The address of the task listener.")
    internal_bind_host: str = host(
        LOOPBACK, "The address of the internal listener. On any address but loopback, metrics need a token."
    )
    public_host: str | None = host(
        None, "The name or address by which other machines reach this one; the certificate carries it."
    )
    public_port: int = port("Port of the public listener.")
    task_port: int = port("Port of the task listener.")
    internal_port: int = port("Port of the internal listener.")
    query_bind_host: str | None = host(None, "The address of the Query Service's listener for people.")
    query_task_bind_host: str | None = host(None, "The address of the Query Service's listener for tasks.")
    runner_bind_host: str = host(LOOPBACK, "The address of the runner's listener for Dispatchers.")
    runner_port: int = port("Port of the runner's listener.")
    query_port: int = port("Port of the Query Service's listener for people.")
    query_public_url: str | None = text(
        None,
        r"https://[A-Za-z0-9.:\[\]-]+",
        "an address like https://host:8443",
        "Where people on other machines reach the Query Service; without it, at the port of its listener.",
    )
    query_task_port: int = port("Port of the Query Service's listener for tasks.")
    public_connections: int = integer(512, "Maximum number of connections of the public listener.", minimum=8)
    task_connections: int = integer(1024, "The same for the task listener.", minimum=8)
    internal_connections: int = integer(1024, "The same for the internal listener.", minimum=8)
    query_connections: int = integer(256, "The same for the Query Service's listener for people.", minimum=8)
    query_task_connections: int = integer(512, "The same for the Query Service's listener for tasks.", minimum=8)
    runner_connections: int = integer(64, "The same for the runner's listener.", minimum=8)
    http_address_connections: int = integer(
        256, "Connections of one address (IPv6: of a /64) to one listener; a reverse proxy is one address.", minimum=4
    )
    http_handshakes: int = integer(32, "TLS handshakes of one listener at once; more wait for their turn.")
    http_handshake_seconds: float = seconds(10, "How long a connection may take until its TLS handshake is complete.")
    http_head_seconds: float = seconds(15, "How long the headers of a request may take.")
    http_body_seconds: float = seconds(60, "How long the body of a request may take.")
    http_body_bytes_per_second: int = integer(
        1024, "The least rate of a body, after a quarter of http_body_seconds.", minimum=0
    )
    http_idle_seconds: float = seconds(75, "How long a connection may be idle between two requests.")

    lease_seconds: float = seconds(120, "How long a lease lasts without a heartbeat, unless the job sets it.")
    heartbeat_seconds: float = seconds(30, "How often a worker sends a heartbeat.")
    max_attempts: int = integer(3, "Maximum number of attempts of a task, unless the job sets it.")
    retry_min_seconds: float = seconds(30, "Delay before the first retry of a failed task.")
    retry_max_seconds: float = seconds(600, "Longest delay between retries of a failed task.")
    timeout_seconds: float = seconds(1800, "Maximum duration of one attempt, unless the job sets it.")
    lambda_timeout_seconds: float = seconds(60, "The same for jobs with `runtime: lambda`.")

    outbox_retry_min_seconds: float = seconds(
        1, "Delay before the first retry of an outbox row that could not be sent."
    )
    outbox_retry_max_seconds: float = seconds(300, "Longest delay between retries of an outbox row.")
    outbox_max_tries: int = integer(20, "Rejections by the transport after which an outbox row fails.")
    relay_poll_seconds: float = seconds(1.0, "How often the relay polls for rows that other processes left.")
    relay_batch: int = integer(256, "Outbox rows of each kind that the relay sends at once.")

    artifact_max_bytes: int = integer(16 * _MIB, "The largest artifact that may be published.")
    body_max_bytes: int = integer(_MIB, "The largest body of a single call.")
    batch_body_max_bytes: int = integer(8 * _MIB, "The largest body of a batch call.")
    http_anonymous_body_bytes: int = integer(
        16 * _MIB,
        "Bodies that a listener receives at once from callers who have shown no credential; a quarter for one address.",
        minimum=_MIB,
    )
    group_commit_max: int = integer(128, "Maximum number of calls in one transaction; 1 turns group commit off.")
    group_commit_lanes: int = integer(
        2, "Transactions of claims and heartbeats in flight at once, and as many of ordinary calls."
    )
    group_commit_weight: int = integer(
        512, "Estimated work in one transaction, in rows; a call of more than an eighth of it is heavy.", minimum=8
    )
    group_commit_stall_seconds: float = seconds(
        120, "How long lifecycle calls may wait without any progress before the liveness check fails."
    )

    reaper_seconds: float = seconds(1.0, "How often the reaper looks for expired leases.")
    retry_seconds: float = seconds(0.5, "How often the retry loop looks for retries that are due.")
    reconcile_seconds: float = seconds(60, "How often the reconciler looks for lost wake-ups.")
    reconcile_grace_seconds: float = seconds(60, "Age at which a missing wake-up counts as lost.")

    jwks_cache_seconds: float = seconds(300, "How long verifiers may cache the published keys.")
    credential_overlap_seconds: float = seconds(3600, "How long a rotated token is still accepted.")

    user_issuer: str = visible("trace", "The issuer (`iss`) of user tokens.")
    user_audience: str = visible("trace.user", "The required audience (`aud`) of user tokens.")
    user_jwks: Path | str | None = jwks("The keys of an identity provider's user tokens, instead of the stack's own.")
    user_org_claim: str = visible("org", "The claim of a user token that holds the org.")
    user_roles_claim: str = visible("roles", "The claim of a user token that lists the roles.")
    user_dags_claim: str = visible("dags", "The claim of a user token that limits it to DAGs.")
    user_read_dags_claim: str = visible(
        "read_dags", "The claim of a limited user token with more DAGs, to be read only."
    )
    user_rate_per_second: int = integer(50, "Average number of requests per second of one user.")
    user_rate_burst: int = integer(100, "Requests that one user may send at once.")

    quota_queued_tasks: int = integer(200_000, "Queued tasks of one org; 0 is no limit.", minimum=0)
    quota_running_tasks: int = integer(
        0, "Tasks of one org that run at once; 0 is no limit.", minimum=0, maximum=1_000_000
    )
    quota_running_functions: int = integer(
        0, "Users' functions of one org that run at once; 0 is no limit.", minimum=0, maximum=1_000_000
    )
    quota_units_per_range: int = integer(
        100_000, "Maximum number of units of one range; 0: the platform's limit of a million.", minimum=0
    )
    quota_stored_bytes: int = integer(0, "Bytes of committed files of one org; 0 is no limit.", minimum=0)
    quota_deploys_per_hour: int = integer(300, "New versions of one org in an hour; 0 is no limit.", minimum=0)
    quota_dry_runs_per_minute: int = integer(
        120, "Dry runs of one org in a minute, at each Dispatcher; 0 is no limit.", minimum=0
    )

    document_processes: int = integer(2, "Processes that read DAG documents; one org has all but one of them at most.")
    document_seconds: float = seconds(20, "CPU time for parsing one DAG document.")
    document_queue: int = integer(8, "Documents of one org that may wait to be parsed; further ones get 429.")

    webhook_max_bytes: int = integer(256 * 1024, "The largest body of a webhook delivery.")
    webhook_tolerance_seconds: float = seconds(
        300, "Maximum difference between the time of a signature and now, in either direction."
    )
    webhook_retention_days: int = integer(30, "How long bodies and ids of deliveries are kept.")
    webhook_rotation_seconds: float = seconds(86400, "How long a rotated secret of a webhook is still accepted.")
    webhook_rate_per_second: int = integer(50, "Average number of deliveries per second of one webhook.")
    webhook_rate_burst: int = integer(100, "Maximum number of deliveries of one webhook at once.")

    s3_endpoint: str | None = text(
        None,
        r"aws|https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?",
        "`aws`, or an address like https://host:9000",
        "Your own object store instead of the embedded one: an address, or `aws` for Amazon S3.",
    )
    s3_region: str = text("us-east-1", r"[a-z0-9-]{1,40}", "a region", "The region of the object store.")
    s3_access_key: str | None = secret("The access key; without it, the machine's own credentials are used.")
    s3_secret_key: str | None = secret("The secret of that key.")
    s3_task_role: str | None = text(
        None,
        r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,128}",
        "the ARN of a role",
        "The role of credentials for users' code, with `s3_endpoint`; the embedded store has its own. Without it, that"
        " code gets no credentials.",
    )
    s3_port: int = port("Port of the embedded object store.")
    s3_timeout_seconds: float = seconds(60, "How long a worker waits for one reply of the object store.")
    object_store_sync: bool = switch(
        True,
        "Whether a unit is committed only when its files in the embedded object store are on the disk; if not, they may"
        " be lost in a power cut.",
    )
    s3_retry_seconds: float = seconds(
        60, "How long a worker retries an object store that does not answer; then the attempt fails and is retried."
    )
    staging_retention_days: int = integer(7, "How long uncommitted files and scratch files of attempts are kept.")
    trigger_retention_days: int = integer(
        30, "How long the idempotency keys of triggers are kept; 0 for ever.", minimum=0
    )
    attempt_retention_days: int = integer(
        30, "How long replaced attempts and Spark statistics are kept; 0 for ever.", minimum=0
    )
    task_retention_days: int = integer(
        90,
        "How long finished tasks are kept that no DAG made; 0 for ever. Those of DAGs go with their version.",
        minimum=0,
    )
    check_retention_days: int = integer(90, "How long results of checks are kept; 0 for ever.", minimum=0)
    query_audit_retention_days: int = integer(365, "How long the audit of queries is kept; 0 for ever.", minimum=0)
    kept_versions: int = integer(
        20,
        "How many versions of a DAG are kept: the newest, and as many that were active last. Older ones go, with the"
        " tasks and data that only they have; 0 keeps all.",
        minimum=0,
    )
    version_retention_days: int = integer(
        30, "How long a version is kept after it was active, however many came after it.", minimum=0
    )
    removed_retention_days: int = integer(
        7,
        "How long a removed DAG can be restored; then it is deleted with its data. 0 keeps it until it is purged.",
        minimum=0,
    )
    audit_retention_days: int = integer(0, "How long entries of the audit log are kept; 0 for ever.", minimum=0)
    buffer_retention_days: int = integer(
        7, "How long batches of buffered datasets are kept once they are in their table, or were dropped.", minimum=0
    )
    dataset_bucket: str = name("trace-datasets", "The bucket of dataset files.")
    scratch_bucket: str = name("trace-scratch", "The bucket of buffers and scratch files.")
    bundle_bucket: str = name("trace-bundles", "The bucket of users' uploaded code, and of logs of its runs.")
    log_retention_days: int = integer(14, "How long logs of attempts are kept; 0 for ever.", minimum=0)
    bundle_max_bytes: int = integer(50 * _MIB, "The largest archive of a bundle.", maximum=256 * _MIB)
    bundle_max_entries: int = integer(10_000, "Files and directories of a bundle.", maximum=65_000)
    bundle_max_expanded_bytes: int = integer(250 * _MIB, "The files of a bundle in total.", maximum=2 * _GIB)
    bundle_max_ratio: int = integer(
        100, "How many times larger than its archive the files of a bundle may be, if they exceed 4 MiB.", maximum=1100
    )
    bundle_upload_seconds: int = integer(
        900, "How long the address of an upload is valid.", minimum=10, maximum=24 * 3600
    )
    bundle_open_uploads: int = integer(16, "Uploads of an org that are not finalized; more are refused with 429.")
    bundles_per_org: int = integer(1000, "Enabled bundles of an org.", maximum=10_000)
    bundle_processes: int = integer(2, "Bundles that a Dispatcher inspects at once.", maximum=64)
    bundle_seconds: float = seconds(20, "Processor time that the inspection of a bundle may take.")
    udf_memory_mb: int = integer(256, "Memory of a user function, in MiB, unless its job says otherwise.", minimum=64)
    udf_max_memory_mb: int = integer(1024, "The most memory that a job may give to its function, in MiB.", minimum=64)

    query_service: bool = switch(True, "Whether `trace up` starts the Query Service.")
    query_engines: int = integer(2, "Queries that engines compute at once.", maximum=64)
    query_threads: int = integer(2, "Threads of one engine.", maximum=64)
    query_memory_bytes: int = integer(_GIB, "Memory of one engine.", minimum=64 * _MIB)
    query_gate_processes: int = integer(1, "Processes that check the SQL of queries.", maximum=16)
    query_user_queries: int = integer(4, "Queries of one person at once, waiting ones included.")
    query_task_queries: int = integer(4, "Queries of one task at once; more wait.")
    query_org_waiting: int = integer(16, "Queries of an org that may wait; more are refused with 429.", minimum=0)
    query_user_seconds: int = integer(60, "Time limit of a person's query, and the most that a request can name.")
    query_task_seconds: int = integer(300, "The same for queries of tasks.")
    query_max_input_bytes: int = integer(
        4 * _GIB, "Bytes of files and tables that an interactive query may read, after pruning."
    )
    query_heavy_bytes: int = integer(
        256 * _MIB, "A query that reads more is a heavy one; heavy ones leave an engine to the others."
    )
    query_inline_rows: int = integer(10_000, "Rows of a reply; a larger result is exported.")
    query_inline_bytes: int = integer(10 * _MIB, "Bytes of a reply; a larger result is exported.")
    query_export_bytes: int = integer(2 * _GIB, "The largest result that is exported.")
    query_download_seconds: int = integer(
        3600, "How long the address of an exported result is valid.", maximum=7 * 24 * 3600
    )
    query_batch_seconds: int = integer(3600, "Time limit of one attempt at a batch query.", maximum=23 * 3600)
    query_batch_running: int = integer(1, "Batch queries of an org that run at once; more wait.", maximum=1000)
    query_batch_user_open: int = integer(10, "Batch queries of one person that have not ended; more get 429.")
    query_batch_org_open: int = integer(50, "The same for one org.")
    query_batch_result_bytes: int = integer(64 * _GIB, "The largest result of a batch query.")
    query_batch_retention_days: int = integer(7, "How long a batch query that ended is kept, with its result.")
    query_cache_bytes: int = integer(
        20 * _GIB, "Files that the Query Service keeps; those that were used longest ago go first."
    )

    runner: bool = switch(True, "Whether `trace up` starts a runner of users' functions.")
    runner_url: str | None = text(
        None,
        r"https://[A-Za-z0-9.:\[\]-]+",
        "an address like https://host:8443",
        "Where Dispatchers reach the runner; `trace up` knows its own.",
    )
    runner_slots: int = integer(
        8,
        "Functions that a runner runs at once. Dispatchers start as many, unless `runtimes_file` has another limit of"
        " the operator `udf`.",
        maximum=1024,
    )
    runner_wait_seconds: float = seconds(20, "How long an attempt waits for a free slot of the runner.")
    runner_spares: int = integer(1, "Sandboxes that a runner makes before they are needed.", minimum=0, maximum=64)
    runner_scratch_bytes: int = integer(256 * _MIB, "Size of a function's scratch directory.", minimum=_MIB)
    runner_cache_bytes: int = integer(
        2 * _GIB, "Unpacked bundles that a runner keeps; those that were used longest ago go first."
    )
    runner_heartbeat_seconds: float = seconds(
        2, "How often a runner asks whether an attempt is still current; a stale one is ended then.", maximum=4
    )

    workers: int = integer(1, "Worker processes that `trace up` starts.", minimum=0, maximum=256)
    worker_slots: int = integer(16, "Maximum number of concurrent tasks of one worker.", maximum=4096)
    worker_reserved_slots: int = integer(
        1,
        "Slots of a worker reserved for orgs with no task in flight; at most an eighth of all.",
        minimum=0,
        maximum=512,
    )
    worker_runtime: str = name("ecs_platform", "The runtime whose tasks the worker claims.")
    worker_stop_seconds: float = seconds(
        20,
        "How long work in Spark may take to stop when its task is cancelled or out of time; then the worker ends the"
        " Spark process that it runs in. After twice as long any operator loses its slot.",
    )
    spark_master: str = text(
        "local[*]",
        _SPARK,
        "a master: local[*], local[4], spark://host:7077, sc://host:15002, yarn or k8s://https://host:443",
        "Where Spark runs; see docs/spark.md.",
    )
    spark_memory: str = memory("1g", "Memory of each Spark driver; in local mode it does the work.")
    spark_isolation: str = choice(
        "org",
        ("org", "shared"),
        "Whether each org has a Spark process, or application, of its own in a worker (`org`), or all share one.",
    )
    spark_overhead: str = memory(
        "2g", "Memory that the Spark process of an org may take beyond `spark_memory`; one that takes more is ended."
    )
    spark_processes: int = integer(
        4, "Orgs that have a Spark process in one worker at the same time; others wait their turn.", maximum=256
    )
    spark_idle_seconds: float = seconds(
        300, "How long a Spark process waits for its next task before it ends, and the worker's own session with it."
    )
    spark_spare: bool = switch(
        True, "Whether a worker keeps one Spark process ready for the next org, to hide the start."
    )
    feed_public: bool = switch(
        True, "Whether feeds (`http_fetch`) may call public hosts; otherwise only those in `feed_hosts`."
    )
    feed_hosts: str = text(
        "",
        r"([a-z][a-z0-9_]{0,127}@(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}(,(?!$)|$))*",
        "entries like acme@prices.internal:8080, separated by commas",
        "Private hosts that feeds of an org may call, each with the org and the port: `org@host:port`.",
    )
    feed_ports: str = text(
        "80,443",
        r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4}){0,15}",
        "ports, separated by commas",
        "Ports of public hosts that feeds may call.",
    )
    feed_processes: int = integer(
        4, "Feeds that one worker reads at the same time, each in a process of its own.", maximum=256
    )
    feed_memory: str = memory("1g", "Memory that the process of one feed may take.")
    recorded_chain: Path | None = recording(
        "A recorded chain that `trace up` serves by JSON-RPC; workers know it as the endpoint `default`. "
        "`example` is the one that comes with Trace."
    )
    runtimes_file: Path | None = file(
        "A TOML file that adds or changes runtimes and limits operators; see operating.md."
    )
    scheduler_poll_seconds: float = seconds(2, "How often the scheduler looks for new cron sources.")
    scheduler_tolerance_seconds: float = seconds(60, "How late a slot of a cron source with `catch_up: none` may fire.")
    scheduler_batch: int = integer(
        100, "Missed slots of each source that the scheduler fires in one round.", maximum=10_000
    )
    sinks: int = integer(0, "Additional sink processes that `trace up` starts.", minimum=0, maximum=64)
    worker_sink: bool = switch(True, "Whether a worker also runs a sink.")
    sink_batches: int = integer(
        64, "Maximum number of batches of one dataset that a sink merges at once.", maximum=1000
    )
    # A sink that has not asked for a minute counts as gone.
    sink_poll_seconds: float = seconds(2, "How often a sink looks for new buffered datasets.", maximum=30)
    sink_spark_bytes: int = integer(
        32 * 2**20, "Batches of together at least so many bytes are loaded by Spark; fewer are not worth its price."
    )
    invoke_slots: int = integer(16, "Attempts of one runtime that a Dispatcher starts itself at once.", maximum=4096)
    queue_visibility_seconds: float = seconds(60, "How long a received message is hidden from others.")
    queue_max_receives: int = integer(10, "Receives after which a message becomes a dead letter.")

    otlp_endpoint: str = text(
        "",
        r"(https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?)?",
        "an address like http://127.0.0.1:4318, without a name or password",
        "The OpenTelemetry collector that gets traces, over OTLP/HTTP; nothing is traced without it. See tracing.md.",
    )
    otlp_sample_ratio: float = ratio(1.0, "The share of traces that is recorded.")

    openlineage_url: str = text(
        "",
        r"(https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?)?",
        "an address like http://127.0.0.1:5000, without a name or password",
        "The receiver of OpenLineage events of all orgs; nothing is sent without it. See openlineage.md.",
    )
    openlineage_key_file: Path | None = file("A file that holds the key of that receiver, sent as a bearer token.")
    openlineage_namespace: str = name("trace", "What the namespaces of OpenLineage events begin with; the org follows.")
    openlineage_backlog: int = integer(
        1_000_000,
        "OpenLineage events that are kept while the receiver is away; beyond it the oldest are dropped.",
        minimum=1000,
    )

    test_clock: bool = switch(False, "Allow a replaced `trace_now()`; only for tests.")

    @classmethod
    def load(
        cls, overrides: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
    ) -> "Settings":
        """Reads all settings once. Overrides that are None count as not given."""
        settings = cls(**load_values(DECLARED, overrides or {}, os.environ if environ is None else environ))
        _check_together(settings)
        return settings

    @property
    def layout(self) -> Home:
        return Home(self.home)

    def to_environment(self) -> dict[str, str]:
        """The variables with which a child process reads the same settings; secrets stay in their files."""
        return {
            variable_of(name): spec.metadata["kind"].show(getattr(self, name))
            for name, spec in DECLARED.items()
            if not spec.metadata["kind"].secret
        }

    def bind_host_of(self, listener: str) -> str:
        """The address that a listener binds."""
        host: str | None = getattr(self, f"{listener}_bind_host")
        return host or self.bind_host

    @property
    def bind_hosts(self) -> tuple[str, ...]:
        """Every address that some listener binds, and `public_host`: the certificate names them."""
        hosts = [
            self.bind_host_of(listener) for listener in ("public", "task", "internal", "query", "query_task", "runner")
        ]
        return tuple(dict.fromkeys([*hosts, *([] if self.public_host is None else [self.public_host])]))

    def resolve_state_dsn(self) -> str:
        return self.state_dsn or _read_dsn("state_dsn", self.layout.state_dsn_file)

    def resolve_queue_dsn(self) -> str:
        return self.queue_dsn or _read_dsn("queue_dsn", self.layout.queue_dsn_file)

    def resolve_data_dsn(self) -> str:
        return self.data_dsn or _read_dsn("data_dsn", self.layout.data_dsn_file)

    def resolve_data_read_dsn(self) -> str:
        """The address for a role that may only read."""
        return self.data_read_dsn or self.data_dsn or _read_dsn("data_read_dsn", self.layout.data_read_dsn_file)

    def resolve_object_store(self) -> S3Access:
        if self.s3_endpoint is None:
            return _read_access(self.layout.object_store_file)
        endpoint = None if self.s3_endpoint == "aws" else self.s3_endpoint
        if self.s3_access_key is None and CHILD_VARIABLE in os.environ:  # secrets reach children by this file
            return _read_access(self.layout.object_store_file)
        return S3Access(endpoint, self.s3_region, self.s3_access_key, self.s3_secret_key)


DECLARED: dict[str, Field[Any]] = {spec.name: spec for spec in fields(Settings)}


def _check_together(settings: Settings) -> None:
    if (settings.state_dsn is None) != (settings.queue_dsn is None):
        raise SettingsError("state_dsn and queue_dsn belong together: set both, or neither")
    if (settings.s3_access_key is None) != (settings.s3_secret_key is None):
        raise SettingsError("s3_access_key and s3_secret_key belong together: set both, or neither")
    if settings.s3_access_key is not None and settings.s3_endpoint is None:
        raise SettingsError("s3_access_key is for an object store of your own: set s3_endpoint too")
    if settings.s3_task_role is not None and settings.s3_endpoint is None:
        raise SettingsError("s3_task_role is for an object store of your own: set s3_endpoint too")
    if settings.user_jwks is not None and settings.user_issuer == DECLARED["user_issuer"].default:
        raise SettingsError("user_jwks needs user_issuer: the issuer whose keys these are")
    claims = ("iss", "aud", "sub", "iat", "exp", "nbf", "jti")
    own_claims = (
        settings.user_org_claim, settings.user_roles_claim, settings.user_dags_claim, settings.user_read_dags_claim
    )  # fmt: skip
    if len({*own_claims}) < len(own_claims) or {*claims} & {*own_claims}:
        raise SettingsError(
            "user_org_claim, user_roles_claim, user_dags_claim and user_read_dags_claim must be different claims, and "
            "none of "
            f"{', '.join(claims)}"
        )
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
            f"{name} is not set and {path} does not exist; start the stack with `trace up`, or set {variable_of(name)}"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"{path} cannot be read") from None
    return str(parse(DECLARED, name, text, str(path)))


def _read_access(path: Path) -> S3Access:
    try:
        return read_access(path)
    except FileNotFoundError:
        message = f"s3_endpoint is not set and {path} does not exist; start the stack with `trace up`"
        raise SettingsError(f"{message}, or set TRACE_S3_ENDPOINT") from None
    except (OSError, ValueError):
        raise SettingsError(f"{path} cannot be read") from None
