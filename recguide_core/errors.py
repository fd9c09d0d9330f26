"""One family of errors for everything a user can get wrong.

Knows nothing but text. The command line turns an error into one line of cause, one line of
remedy and an exit code; the server turns it into the standard error object.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_FAILURE = 1
EXIT_USAGE = 2


class RecGuideError(Exception):
    """Something went wrong that the user can act on.

    Args:
        cause: one line that says what is wrong, with the offending value.
        remedy: one line that says what to do about it.
    """

    exit_code = EXIT_FAILURE
    http_status = 500

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")
        self.cause = cause
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[RecGuideError], tuple[str, str]]:
        """Survives the way back from a worker process."""
        return type(self), (self.cause, self.remedy)


class UsageError(RecGuideError):
    """A wrong argument, option, setting or request: exit code 2, HTTP 400."""

    exit_code = EXIT_USAGE
    http_status = 400


class DataError(RecGuideError):
    """An input file or table is missing, malformed or does not fit: exit code 1, HTTP 400."""

    http_status = 400


class MismatchError(DataError):
    """An artefact was made from another model, device or table than the one in use."""


class CapacityError(RecGuideError):
    """The work cannot fit into the memory or queue that it was given: HTTP 503."""

    http_status = 503


def nearest(name: str, choices: Iterable[str]) -> str:
    """A remedy that names the closest valid choice, then all of them (at most a dozen)."""
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listing = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {listing}."
