"""What can go wrong, by what the caller should do about it: the errors of `logcal`, which this package raises, too."""

from logcal.errors import (
    MAX_PROBLEMS,
    CheckFailedError,
    ConfigError,
    InputRejectedError,
    LogcalError,
    NothingToDoError,
    TemporaryError,
    examples,
    listing,
)

__all__ = [
    "MAX_PROBLEMS",
    "CheckFailedError",
    "ConfigError",
    "InputRejectedError",
    "LogcalError",
    "NothingToDoError",
    "TemporaryError",
    "examples",
    "listing",
]
