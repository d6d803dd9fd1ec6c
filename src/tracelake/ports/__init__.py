"""What the platform needs from the outside, as Protocols. Adapters of one port pass one conformance suite."""

from tracelake.ports.credential_minter import CredentialMinter, MintedCredentials
from tracelake.ports.invoker import InvokeError, Invoker
from tracelake.ports.object_store import (
    LISTING_LIMIT,
    ContentMismatchError,
    FileTransfer,
    ObjectChangedError,
    ObjectExistsError,
    ObjectMeta,
    ObjectStore,
    ObjectUrls,
    UrlSigner,
    content_mismatch,
    hash_file,
    too_many_objects,
)
from tracelake.ports.queue import (
    DeadLetter,
    Delivery,
    Message,
    Queue,
    QueueDepth,
    QueueRejectedError,
    QueueUnavailableError,
    unavailable_without_queue,
)
from tracelake.ports.secrets import NoSecrets, SecretProvider, SecretValues
from tracelake.ports.signer import PublicKey, Signer
from tracelake.ports.webhook_secrets import DerivedSecrets, WebhookSecrets

__all__ = [
    "LISTING_LIMIT",
    "ContentMismatchError",
    "CredentialMinter",
    "DeadLetter",
    "Delivery",
    "DerivedSecrets",
    "FileTransfer",
    "InvokeError",
    "Invoker",
    "Message",
    "MintedCredentials",
    "NoSecrets",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectMeta",
    "ObjectStore",
    "ObjectUrls",
    "PublicKey",
    "Queue",
    "QueueDepth",
    "QueueRejectedError",
    "QueueUnavailableError",
    "SecretProvider",
    "SecretValues",
    "Signer",
    "UrlSigner",
    "WebhookSecrets",
    "content_mismatch",
    "hash_file",
    "too_many_objects",
    "unavailable_without_queue",
]
