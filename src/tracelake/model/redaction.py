"""Credentials are blanked out of texts by their form, whoever wrote them; secrets of jobs by their value (`HIDDEN`).

The text may be hostile: no pattern takes much longer for a long word than for many short ones.
"""

import re

from tracelake.model.hiding import Hiding

_SECRETS = (
    (re.compile(r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}"), "[token]"),
    (re.compile(r"(?i)(bearer\s+)[^\s\"']+"), r"\1[token]"),
    (re.compile(r"(?i)(x-trace-[a-z-]{1,40}[\\\"']*\s*[:=,]\s*b?[\\\"']*)[^\s\\\"',]+"), r"\1[token]"),
    (re.compile(r"((?<!\w)\w+://[^\s:/@]*:)[^\s@]{1,2000}@"), r"\1[password]@"),
    (
        re.compile(
            r"(?i)((?:lease_token|capability_token|password)[\\\"']*\s*[:=]\s*(?:UUID\()?b?[\\\"']*)[^\s\\\"',})]+"
        ),
        r"\1[hidden]",
    ),
    # A signed address opens an object for whoever has it.
    (re.compile(r"(?i)(X-Amz-(?:Signature|Credential|Security-Token)=)[^\s&\"'<>\\]+"), r"\1[hidden]"),
    # Postgres quotes the failing row, and the driver the argument it could not send: both may hold a lease token.
    (re.compile(r"(DETAIL:\s*|query argument \$\d+: ).*"), r"\1[hidden]"),
    # A worker or service token by itself: 32 random bytes in base64url.
    (
        re.compile(r"(?<![\w-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[A-Za-z0-9_-]{43}(?![\w-])", re.ASCII),
        "[token]",
    ),
)
HIDDEN = Hiding()
"""Values that this process was given in confidence; never in a line, whoever writes it."""


def scrub(text: str) -> str:
    text = HIDDEN(text)  # first: what the patterns leave of a value would not be recognised
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
