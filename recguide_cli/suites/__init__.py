"""Suites of `recguide bench --suite NAME`, and `--simulate`: one module each.

A module defines `run(options)`, which takes the options of `bench` by name (and where each value
came from as `origins`), shows the human view and returns the record that `--json` prints. It
imports the core inside `run`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from recguide_core.errors import UsageError, nearest

SUITES = ("method", "paper", "plan")
SIMULATE = "simulate"


def run_suite(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a suite and return its record.

    Raises:
        UsageError: no suite of that name, or an engine that suites do not run on.
    """
    module = f"recguide_cli.suites.{name}"
    if name not in (*SUITES, SIMULATE) or importlib.util.find_spec(module) is None:
        raise UsageError(f"No suite named '{name}'.", nearest(name, SUITES))
    if options["engine"] != "embedded" or options["tp"] != 1:
        raise UsageError(
            f"--{'simulate' if name == SIMULATE else 'suite'} does not run on SGLang.",
            "Leave --engine and --tp out, or bench the methods one run after another.",
        )
    record: dict[str, Any] = importlib.import_module(module).run(options)
    return record
