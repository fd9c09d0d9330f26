"""Text to token ids and back, and the checkpoint's chat template in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RawTokenizer

from recguide_core.errors import DataError, UsageError
from recguide_core.model.json_files import read_object


def _refuse(message: str) -> None:
    raise UsageError(f"The chat template refuses the messages: {message}", "Change the messages.")


class Tokenizer:
    """A `tokenizer.json` with the special tokens and chat template that lie beside it."""

    def __init__(self, raw: RawTokenizer, special: Mapping[str, str], template: str | None) -> None:
        self.raw = raw
        self.special = dict(special)
        self.template_source = template
        self._template = None
        if template is not None:
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _refuse
            environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
            self._template = environment.from_string(template)

    @classmethod
    def read(cls, folder: Path) -> Tokenizer:
        """Read the tokenizer files of a checkpoint folder."""
        try:
            raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise DataError(
                f"{folder / 'tokenizer.json'} is not a tokenizer file: {error}.",
                "Download the file again.",
            ) from None
        settings: dict[str, Any] = {}
        path = folder / "tokenizer_config.json"
        if path.is_file():
            settings = read_object(path)
        special = {}
        for key, value in settings.items():
            if key.endswith("_token") and value is not None:
                special[key] = value["content"] if isinstance(value, dict) else str(value)
        template = settings.get("chat_template")
        file = folder / "chat_template.jinja"
        if file.is_file():
            template = file.read_text(encoding="utf-8")
        return cls(raw, special, template if isinstance(template, str) else None)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; no special tokens are added, those written in it are recognised."""
        return list(self.raw.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids."""
        return str(self.raw.decode(list(ids), skip_special_tokens=skip_special))

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Prompt text of a chat.

        Raises:
            UsageError: the checkpoint has no chat template, or the template refuses.
        """
        if self._template is None:
            raise UsageError(
                "The checkpoint has no chat template.",
                "Use completions, or add chat_template.jinja to the model's folder.",
            )
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self.special
            )
        except jinja2.TemplateError as error:
            raise UsageError(
                f"The chat template fails on these messages: {error}", "Check roles and contents."
            ) from None
