"""Prompts for bench and calibrate: the demo set, the paper's benchmarks, a user's files.

Knows files and rows, not models: rendering with a chat template and tokenising come later. Reads
no environment; the command line passes the data directory.
"""

from __future__ import annotations

from recguide_core.datasets.load import Loaded, ReadOptions, load_prompts, select
from recguide_core.datasets.records import Prompt, Skipped

__all__ = ["Loaded", "Prompt", "ReadOptions", "Skipped", "load_prompts", "select"]
