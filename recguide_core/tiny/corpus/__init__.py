"""The synthetic corpus of nld-tiny: four domains and drills, every stated result true by
construction.

A document belongs to the held-out split if a checksum of its prompt says so; the training split
never contains it. The two are therefore disjoint for every seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from zlib import crc32

from recguide_core.errors import UsageError, nearest
from recguide_core.tiny.corpus import arithmetic, code, drills, instructions, lists

DOMAINS = ("math", "code", "lists", "instructions")
_FORMS = {
    "math": arithmetic.FORMS,
    "code": code.FORMS,
    "lists": lists.FORMS,
    "instructions": instructions.FORMS,
    "drill": drills.FORMS,
}
_HELD_OUT_PERCENT = 5


@dataclass(frozen=True)
class Document:
    """One prompt and its answer, as plain text without the chat template."""

    domain: str
    form: str
    prompt: str
    answer: str


def held_out(prompt: str) -> bool:
    """Return whether this prompt is kept away from training."""
    return crc32(prompt.encode()) % 100 < _HELD_OUT_PERCENT


def documents(domain: str, seed: int, *, test: bool) -> Iterator[Document]:
    """Yield different documents of one domain without end, the same ones for the same seed.

    Args:
        domain: one of `DOMAINS` or `drill`.
        seed: any integer.
        test: True for the held-out split, False for the training split.

    Raises:
        UsageError: no such domain.
    """
    if domain not in _FORMS:
        raise UsageError(f"There is no corpus domain '{domain}'.", nearest(domain, _FORMS))
    rng = Random(f"{domain}-{seed}-{test}")
    forms = list(_FORMS[domain].items())
    seen: set[str] = set()
    while True:
        name, form = rng.choice(forms)
        prompt, answer = form(rng)
        if held_out(prompt) is test and prompt not in seen:
            seen.add(prompt)
            yield Document(domain, name, prompt, answer)
