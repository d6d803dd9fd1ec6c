"""What can go wrong with a feed. Texts are one line, for everybody in the org: no address beyond a host, no secret."""


class FeedError(Exception):
    """A feed that cannot be read. `final`: another attempt would fail in the same way."""

    def __init__(self, text: str, *, final: bool = False, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.final = final
        self.retry_after = retry_after
        """Seconds that the server asks to be left alone."""


class FeedRefusedError(FeedError):
    """An address that may not be called."""

    def __init__(self, text: str) -> None:
        super().__init__(text, final=True)


class BadRowError(ValueError):
    """A record that does not fit: the column, if one is to blame, and the reason."""

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason if column is None else f"{column}: {reason}")
        self.reason = reason
        self.column = column
