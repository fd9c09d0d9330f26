"""JSON files of a checkpoint folder: read whole, with a fault that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recguide_core.errors import DataError


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        DataError: the file is not UTF-8, not JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not JSON: {error}.", "Download the file again.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object.", "Download the file again.")
    return content
