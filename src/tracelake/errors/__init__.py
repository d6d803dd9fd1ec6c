"""Errors as data: one catalogue of stable codes, one exception that carries a code."""

from tracelake.errors.catalogue import CATALOGUE, ErrorKind
from tracelake.errors.exceptions import (
    SecretMissingError,
    SecretsUnavailableError,
    StoreUnavailableError,
    TraceError,
)

__all__ = [
    "CATALOGUE",
    "ErrorKind",
    "SecretMissingError",
    "SecretsUnavailableError",
    "StoreUnavailableError",
    "TraceError",
]
