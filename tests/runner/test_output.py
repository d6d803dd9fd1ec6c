"""What a function prints, hostile or not: redacted before it is cut, bounded, and linear in cost."""

import random

import pytest

from tracelake.runner.output import KEPT_BYTES, MOST_BYTES, OutputTail, redact

TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJ0YXNrX2lkIjoiMDE5MCJ9.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
OTHER_TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJ0YXNrX2lkIjoiMDE5MSJ9.YW5vdGhlci1zaWduYXR1cmUtb2YtaXQ"
LEASE = "7f2c9f64-5717-4562-b3fc-2c963f66afa6"
ADDRESS = "http://127.0.0.1:20905/trace-bundles/bundles/a.zip?X-Amz-Date=1&X-Amz-Signature=0123abcd"
SECRETS = [TOKEN, LEASE, ADDRESS]


def feed(text: bytes, sizes: list[int], secrets: list[str] = SECRETS) -> OutputTail:
    """Fed in pieces of these sizes, over and over."""
    tail, position, turn = OutputTail(secrets), 0, 0
    while position < len(text):
        tail.feed(text[position : position + sizes[turn % len(sizes)]])
        position, turn = position + sizes[turn % len(sizes)], turn + 1
    tail.finish()
    return tail


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 64, 1000, 70_000])
def test_a_secret_in_pieces_is_never_shown(size: int) -> None:
    text = f"a {TOKEN}\nlease={LEASE};{LEASE}\n<{ADDRESS}> {TOKEN}:{LEASE} end".encode()
    shown = feed(text, [size]).piece().text
    assert shown == "a [redacted]\nlease=[redacted];[redacted]\n<[redacted]> [redacted]:[redacted] end"


def test_pieces_of_random_sizes_give_what_the_whole_text_gives() -> None:
    chance = random.Random(4)
    words = [TOKEN, LEASE, ADDRESS, OTHER_TOKEN, "plain", "é漢", "eyJ", "eyJ.eyJ", "x" * 5000, " ", "\n", ".", "=", '"']
    for _ in range(200):
        text = "".join(chance.choice(words) for _ in range(40))
        tail = feed(text.encode(), [chance.randint(1, 3000) for _ in range(9)])
        assert tail.piece().text == redact(text, SECRETS)


def test_a_secret_in_a_long_word_is_found() -> None:
    """No white space for longer than any secret: what is released early holds no part of one."""
    for before in (65_530, 65_536, 131_000, 200_000):
        for size in (1000, 65_536):
            shown = feed(b"x" * before + TOKEN.encode() + b"y" * 200_000, [size]).piece()
            assert shown.end == before + len("[redacted]") + 200_000
            assert TOKEN[-20:] not in shown.text
            assert TOKEN[:20] not in shown.text


def test_credentials_that_the_runner_was_not_given() -> None:
    address = "https://s3/x?X-Amz-Credential=AKIA%2F1&X-Amz-Expires=9&X-Amz-Signature=ff00"
    shown = feed(f'{{"token":"{OTHER_TOKEN}"}} \\n{OTHER_TOKEN} {address}'.encode(), [11]).piece().text
    assert shown == (
        '{"token":"[redacted]"} \\n[redacted] https://s3/x?X-Amz-Credential=[redacted]&X-Amz-Expires=9'
        "&X-Amz-Signature=[redacted]"
    )
    assert redact("module.function_name.another_long_name", []) == "module.function_name.another_long_name"


def test_a_secret_that_is_learned_later_is_blanked_from_then_on() -> None:
    secrets: list[str] = []
    tail = OutputTail(secrets)
    secrets.append("renewed-token-without-a-form")
    tail.feed(b"renewed-token-without-a-form \n")
    assert tail.piece().text == "[redacted] \n"


def test_bytes_that_are_no_text() -> None:
    shown = feed(b"\x00\xff\xfe\x1b[2J \xc3\x28 \xf0\x9f\x98\x80", [1]).piece().text
    assert shown == "\x00\ufffd\ufffd\x1b[2J \ufffd( \U0001f600"


def test_the_end_is_kept_and_positions_count_all() -> None:
    line = "é漢" * 10 + "\n"
    tail = feed(line.encode() * 20_000, [65_536])
    piece = tail.piece()
    total = len(line.encode()) * 20_000
    assert piece.end == total
    assert KEPT_BYTES - 4 < total - piece.start <= KEPT_BYTES
    assert piece.start + len(piece.text.encode()) == piece.end
    assert piece.text.endswith(line)


def test_a_word_is_shown_when_it_has_ended() -> None:
    tail = OutputTail([])
    tail.feed(b"one tw")
    assert tail.piece().text == "one "
    tail.feed(b"o\n")
    assert (tail.piece().text, tail.end) == ("one two\n", 8)


@pytest.mark.parametrize(
    "pattern",
    [
        b"eyJ",
        b"eyJaaaaaaaa.",
        b"eyJaaaaaaaa.aaaaaaaa.",
        b"X-Amz-Signature=",
        b"\xff",
        b"a.b-",
        TOKEN[:-1].encode(),
        b" ",
    ],
)
def test_hostile_output_costs_no_more_than_its_size(pattern: bytes) -> None:
    """A cost that is quadratic in the length of a word would not end within the time of a test."""
    text = (pattern * (MOST_BYTES // 8 // len(pattern)))[: MOST_BYTES // 8]
    tail = feed(text, [65_536])
    assert len(tail.piece().text.encode()) <= KEPT_BYTES
    assert tail.end > 0
