"""The errors a caller is meant to catch."""


class InputError(ValueError):
    """What was handed in is wrong; the message says what, where, and what to do. Commands exit 2 on it.

    Examples
    --------
    >>> from codeward import Code
    >>> try:
    ...     Code([[1, 0], [2, 1]])
    ... except InputError as error:
    ...     print(error)
    code: row 1, column 0 holds 2; entries must be 0 or 1
    """


class TooLargeError(InputError):
    """The request is well formed but would not fit in the stated memory or time; the message gives the size."""


class UnmetError(InputError):
    """The request is sound, but nothing that meets it was found; the message says what is possible. Commands exit 1."""
