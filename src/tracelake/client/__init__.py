"""Typed clients of the Dispatcher. Every failure is a `TraceError`; `retryable` tells whether to repeat the call."""

from tracelake.client.batch_query import BatchQuery, submit_query
from tracelake.client.credentials import Credential, FileCredential
from tracelake.client.errors import DispatcherUnavailableError, RemoteError
from tracelake.client.http import HttpClient, HttpReply
from tracelake.client.internal import InternalClient
from tracelake.client.query import QueryClient, query
from tracelake.client.task import TaskCall, TaskClient

__all__ = [
    "BatchQuery",
    "Credential",
    "DispatcherUnavailableError",
    "FileCredential",
    "HttpClient",
    "HttpReply",
    "InternalClient",
    "QueryClient",
    "RemoteError",
    "TaskCall",
    "TaskClient",
    "query",
    "submit_query",
]
