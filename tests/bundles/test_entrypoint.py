"""What a language can start, and what an upload reports about names."""

import hashlib

import pytest

from tests.bundles.archives import EXECUTABLE, FILE, RawEntry, elf, make_zip
from tracelake.bundles.archive import ArchiveLimits, ArchiveRefusal, read_archive
from tracelake.bundles.child import REPLIES as CHILD_REPLIES
from tracelake.bundles.child import InspectionReply, InspectionRequest, answer, encode_request, inspect_bundle
from tracelake.bundles.entrypoint import ENTRYPOINT_REFUSALS, BundleWarning, Language, check_entrypoint

LIMITS = ArchiveLimits()


def check(language: Language, entrypoint: str | None, *names: str, machine: str = "x86_64") -> list[BundleWarning]:
    data = make_zip(*(RawEntry(name=name.encode()) for name in names))
    return check_entrypoint(data, read_archive(data, LIMITS), language, entrypoint, machine)


@pytest.mark.parametrize(
    ("language", "entrypoint", "name"),
    [
        ("python", "main.handler", "main.py"),
        ("python", "trace.handler", "trace.py"),
        ("python", "package.module.handler", "package/module.py"),
        ("python", "package/module.handler", "package/module.py"),
        ("python", "package.handler", "package/__init__.py"),
        ("node", "index.handler", "index.js"),
        ("node", "index.handler", "index.mjs"),
        ("node", "dist/main-1.handler", "dist/main-1.cjs"),
    ],
)
def test_an_entrypoint_whose_file_exists_is_taken(language: Language, entrypoint: str, name: str) -> None:
    check(language, entrypoint, name)
    with pytest.raises(ArchiveRefusal) as refusal:
        check(language, entrypoint, f"other/{name}")
    assert refusal.value.code == "entrypoint_missing"


@pytest.mark.parametrize(
    ("language", "entrypoint"),
    [
        ("python", None), ("python", ""), ("python", "main"), ("python", ".handler"), ("python", "main."),
        ("python", "../main.handler"), ("python", "/main.handler"), ("python", "main..handler"),
        ("python", "ma in.handler"), ("python", "main.handler\n"), ("python", "1main.handler"),
        ("node", None), ("node", "index"), ("node", "../index.handler"), ("node", "/index.handler"),
        ("node", "a//index.handler"), ("node", "index.js.handler"), ("node", "index.handler;x"),
        ("rust", "main.handler"), ("rust", ""),
    ],
)  # fmt: skip
def test_an_entrypoint_of_another_form_is_refused(language: Language, entrypoint: str | None) -> None:
    with pytest.raises(ArchiveRefusal) as refusal:
        check(language, entrypoint, "main.py", "index.js")
    assert refusal.value.code == "entrypoint_invalid"


def test_names_that_clash_are_reported() -> None:
    names = ("trace.py", "json.py", "logging/__init__.py", "tracelake/__init__.py", "lib/json.py", "data/os.txt")
    assert [(warning.code, warning.entry) for warning in check("python", "trace.handler", *names)] == [
        ("shadows_standard_library", "json.py"),
        ("shadows_standard_library", "logging/__init__.py"),
        ("shadows_standard_library", "trace.py"),
        ("shadows_sdk", "tracelake/__init__.py"),
    ]
    assert check("node", "index.handler", "index.js", "json.py") == []


@pytest.mark.parametrize(
    ("content", "mode", "machine", "problem"),
    [
        (elf(62), EXECUTABLE, "x86_64", None),
        (elf(183, kind=2), EXECUTABLE, "aarch64", None),
        (elf(183), EXECUTABLE, "x86_64", "received one for aarch64"),
        (elf(62), FILE, "x86_64", "mode of an executable"),
        (elf(62, width=1), EXECUTABLE, "x86_64", "64-bit ELF"),
        (elf(62, kind=1), EXECUTABLE, "x86_64", "64-bit ELF"),
        (b"#!/bin/sh\nexit 0\n" * 9, EXECUTABLE, "x86_64", "64-bit ELF"),
        (b"\x7fELF", EXECUTABLE, "x86_64", "64-bit ELF"),
        (elf(62), EXECUTABLE, "riscv64", "runs no Rust bundles on riscv64"),
    ],
)
def test_a_bootstrap_must_run_on_this_platform(content: bytes, mode: int, machine: str, problem: str | None) -> None:
    data = make_zip(RawEntry(name=b"bootstrap", content=content, mode=mode))
    entries = read_archive(data, LIMITS)
    if problem is None:
        assert check_entrypoint(data, entries, "rust", None, machine) == []
        return
    with pytest.raises(ArchiveRefusal, match=problem) as refusal:
        check_entrypoint(data, entries, "rust", None, machine)
    assert refusal.value.code == "bootstrap_invalid"
    assert refusal.value.code in ENTRYPOINT_REFUSALS


def test_a_rust_bundle_needs_its_bootstrap_at_the_root() -> None:
    with pytest.raises(ArchiveRefusal) as refusal:
        check("rust", None, "target/bootstrap")
    assert refusal.value.code == "entrypoint_missing"


def inspect(data: bytes, sha256: str | None = None, *, max_bytes: int = 10_000) -> InspectionReply:
    request = InspectionRequest(
        sha256=sha256 or hashlib.sha256(data).hexdigest(),
        language="python",
        entrypoint="main.handler",
        limits=ArchiveLimits(max_bytes=max_bytes),
    )
    reply = CHILD_REPLIES.decode(answer(encode_request(request) + data))
    assert reply == inspect_bundle(request, data)
    return reply


def test_an_inspection_answers_what_there_is_to_know() -> None:
    reply = inspect(make_zip(RawEntry(content=b"12345")))
    assert (reply.code, reply.entry_count, reply.expanded_bytes) == (None, 1, 5)
    assert inspect(make_zip(RawEntry()), "0" * 64).code == "sha256_mismatch"
    assert inspect(make_zip(RawEntry(name=b"../main.py"))).code == "name_invalid"
    assert inspect(make_zip(RawEntry()), max_bytes=10).code == "archive_too_large"
