"""The error of every parser of this package."""


class LiteralError(ValueError):
    """The text is not one of the language. The message says what was expected, and repeats nothing long."""
