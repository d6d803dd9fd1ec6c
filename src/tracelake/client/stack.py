"""Finds the stack that a command or a program talks to: one of this machine, or one of another by a context.

`find_stack` is the only place that decides. The first of these that is given wins:

1. the argument `home` or `context` (`--home`, `--context`), of which only one can be given;
2. the variable `TRACE_CONTEXT`;
3. the variable `TRACE_HOME`;
4. the current context, which `trace login` and `trace context use` choose;
5. the stack of `~/.trace`.

A home is a stack of this machine, described by `HOME/stack.json`, which exists from when the stack is ready until it
stops. The context `local` is the stack of this machine, too, so that `--context local` reaches it whatever the current
context is. `client/contexts.py` has the files of the others.
"""

import os
from pathlib import Path

import msgspec

from tracelake.client.contexts import LOCAL, ContextError, ContextStore
from tracelake.client.credentials import FileCredential
from tracelake.client.http import HttpClient
from tracelake.client.internal import InternalClient

STACK_VERSION = 1
CONTEXT_VARIABLE = "TRACE_CONTEXT"
HOME_VARIABLE = "TRACE_HOME"


class NoStackError(Exception):
    """No stack is running, or none is named by that context; the message tells what to do."""


class HostOnlyError(NoStackError):
    """The command needs the files of the stack's machine, and a context names a stack of another one."""


class ObjectStoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the object store; the Dispatcher hands out its keys."""

    endpoint: str | None
    """None: S3 of AWS in `region`."""
    region: str
    buckets: dict[str, str]
    """`datasets`, `scratch`, `bundles`."""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stack is, and what its caller has to reach it.

    `public_url`, `ca_file` and `query_url` are enough for every call of a user. A caller from another machine has no
    more than these and `token_file`: what only the machine of the stack has is None. `UserClient.of_stack` and
    `QueryClient` take a stack of either kind. Whoever reads files beside the API checks `is_local` first.
    """

    version: int = STACK_VERSION
    pid: int | None = None
    home: str | None = None
    public_url: str
    task_url: str | None = None
    internal_url: str | None = None
    ca_file: str
    """Empty: the CAs of the machine verify the addresses."""
    worker_token_file: str | None = None
    service_token_file: str | None = None
    admin_token_file: str | None = None
    queue_dsn_file: str | None = None
    data_dsn_file: str | None = None
    object_store: ObjectStoreAddress | None = None
    query_url: str | None = None
    """The Query Service for people; None: the stack has none, or did not have one at the last `trace login`."""
    query_task_url: str | None = None
    """The Query Service for tasks."""
    context: str | None = None
    """The name of the context; None: a stack of this machine."""
    token_file: str | None = None
    """The token of the context."""
    shared_public_url: str | None = None
    """The address for other machines, by `public_host`; None: `public_url` is what they use too."""
    shared_query_url: str | None = None

    @property
    def public_url_for_others(self) -> str:
        """To be shown and passed on. Programs of this machine call `public_url`."""
        return self.shared_public_url or self.public_url

    @property
    def query_url_for_others(self) -> str | None:
        return self.query_url and (self.shared_query_url or self.query_url)

    @property
    def is_local(self) -> bool:
        return self.home is not None

    @property
    def user_token_file(self) -> str:
        """The token of a user who gives none: that of the context, or the admin token of this machine's stack."""
        path = self.token_file or self.admin_token_file
        assert path is not None
        return path

    def internal_client(self) -> InternalClient:
        """Raises HostOnlyError where the stack is reached by a context: its internal listener is not for people."""
        if self.internal_url is None or self.worker_token_file is None or self.service_token_file is None:
            raise HostOnlyError(explain_host_only(self.context or ""))
        return InternalClient(
            HttpClient(self.internal_url, self.ca_file),
            worker=FileCredential(Path(self.worker_token_file)),
            service=FileCredential(Path(self.service_token_file)),
        )


class LocalStack(Stack, frozen=True, kw_only=True):
    """The content of `stack.json`: a stack of this machine, with everything that its parts need."""

    pid: int
    home: str
    task_url: str
    internal_url: str
    worker_token_file: str
    service_token_file: str
    admin_token_file: str
    queue_dsn_file: str
    data_dsn_file: str
    object_store: ObjectStoreAddress


def default_home() -> Path:
    return Path(os.environ.get(HOME_VARIABLE) or "~/.trace").expanduser()


def chosen_context(home: Path | None = None, context: str | None = None) -> str | None:
    """The name of the context in effect; None: a stack of this machine. Raises NoStackError."""
    if home is not None and context is not None:
        raise NoStackError("a home is a stack of this machine, and a context one of another: give one of the two")
    if home is None and context is None:
        context = os.environ.get(CONTEXT_VARIABLE) or None
        if context is None and not os.environ.get(HOME_VARIABLE):
            try:
                context = ContextStore.default().current()
            except ContextError as error:
                raise NoStackError(str(error)) from None
    return None if context == LOCAL else context


def find_stack(home: Path | None = None, context: str | None = None) -> Stack:
    """The stack that the arguments, the environment or the current context name; raises NoStackError."""
    name = chosen_context(home, context)
    return _find_local(home or default_home()) if name is None else _find_remote(name)


def _find_local(root: Path) -> LocalStack:
    try:
        return msgspec.json.decode((root / "stack.json").read_bytes(), type=LocalStack)
    except FileNotFoundError:
        raise NoStackError(f"no stack runs in {root}; start one with `trace up --home {root}`") from None
    except (OSError, msgspec.MsgspecError):
        raise NoStackError(f"{root}/stack.json cannot be read; see `trace status --home {root}`") from None


def _find_remote(name: str) -> Stack:
    store = ContextStore.default()
    try:
        saved = store.read(name)
    except ContextError as error:
        raise NoStackError(str(error)) from None
    return Stack(
        public_url=saved.public_url,
        ca_file=str(store.directory / saved.ca_file) if saved.ca_file else "",
        query_url=saved.query_url,
        context=saved.name,
        token_file=str(store.directory / saved.token_file),
    )


def explain_host_only(context: str) -> str:
    return (
        f"this command runs on the machine of the stack, and your context is {context}, a stack of another machine; "
        "for a stack of this machine add `--home DIR`, or choose it with `trace context use local`"
    )
