"""Which SGLang releases this plugin is known to work with. No SGLang here.

The plugin relies on names that SGLang does not promise to keep, so a release counts only once the
suite (`make test-sglang`) has passed on it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from recguide_core.errors import MismatchError, RecGuideError

KNOWN_GOOD = ("0.5.23",)


def installed_version() -> str | None:
    """Version of the installed SGLang, None without one."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def check_version(found: str | None) -> str:
    """The version, if it is a known one.

    Raises:
        RecGuideError: SGLang is missing. MismatchError: it is of another release.
    """
    known = ", ".join(KNOWN_GOOD)
    if found is None:
        raise RecGuideError(
            "SGLang is not installed.",
            f'Install "recguide[sglang]" (SGLang {known}), or use --engine embedded.',
        )
    if found.split("+")[0] not in KNOWN_GOOD:
        raise MismatchError(
            f"SGLang {found} is installed; RecGuide is known to work with {known}.",
            f'Install "sglang=={KNOWN_GOOD[-1]}".',
        )
    return found
