"""Entry point `sglang.srt.plugins`: runs in every process of a server, before its arguments.

The one place that reads the environment. Without `RECGUIDE_SGLANG_CONFIG` only the model class
and its configuration are registered, so that plain SGLang can serve the checkpoints.
"""

from __future__ import annotations

import os
from pathlib import Path

from recguide_core.sglang_plugin.settings import VARIABLE, PluginSettings, read_settings
from recguide_core.sglang_plugin.versions import check_version, installed_version


def current_settings() -> PluginSettings:
    """Settings of this process's server; the defaults when no file is named."""
    path = os.environ.get(VARIABLE)
    return PluginSettings() if path is None else read_settings(Path(path))


def register() -> None:
    """Register the model, the algorithm and the hooks.

    Raises:
        RecGuideError: SGLang is of another release, or the settings file is wrong. SGLang logs
            it and goes on; the algorithm is then unknown to it and the server does not start.
    """
    check_version(installed_version())
    settings = current_settings()
    from recguide_core.sglang_plugin.adapter import register_config
    from recguide_core.sglang_plugin.algorithm import register_algorithm
    from recguide_core.sglang_plugin.model_config import MODEL_TYPE, NemotronLabsDiffusionConfig

    register_config(MODEL_TYPE, NemotronLabsDiffusionConfig)
    register_algorithm(settings)
