"""From chat messages to prompt text, with the checkpoint's own template."""

from __future__ import annotations

from collections.abc import Sequence

from recguide_core.errors import RecGuideError, nearest
from recguide_core.model.registry import LoadedModel
from recguide_core.serving.errors import ApiError, unsupported
from recguide_core.serving.schema import ROLES, Message


def prompt_of(model: LoadedModel, messages: Sequence[Message]) -> str:
    """Prompt text of a conversation.

    Raises:
        ApiError: no messages, an unknown role, content other than text, or the template refuses.
    """
    if not messages:
        raise ApiError(400, "'messages' is empty; send at least one.", param="messages")
    plain = [_plain(message, f"messages.{i}") for i, message in enumerate(messages)]
    try:
        return model.render(plain)
    except RecGuideError as error:
        raise ApiError(error.http_status, str(error), param="messages") from None
    except Exception as error:
        # A template is a program of the checkpoint: whatever it trips over is in the messages.
        raise ApiError(
            400,
            f"The chat template fails on these messages ({type(error).__name__}).",
            param="messages",
        ) from None


def _plain(message: Message, where: str) -> dict[str, str]:
    """Role and text of a message; `developer` is the newer name of `system`."""
    if message.role in ("tool", "function") or message.tool_calls or message.function_call:
        raise unsupported(f"{where}.role", "Tools are not supported; send text messages only.")
    if message.role not in ROLES:
        raise ApiError(
            400,
            f"Unknown role. {nearest(message.role[:40], ROLES)}",
            param=f"{where}.role",
            code="invalid_value",
        )
    role = "system" if message.role == "developer" else message.role
    plain = {"role": role, "content": _text(message, where)}
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _text(message: Message, where: str) -> str:
    if message.audio is not None:
        raise unsupported(f"{where}.audio", "Audio is not supported; send text.")
    if message.content is None:
        raise ApiError(400, "A message has no content.", param=f"{where}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise unsupported(
                f"{where}.content.{i}", "Only content parts of type 'text' are supported."
            )
        texts.append(part.text)
    return "".join(texts)
