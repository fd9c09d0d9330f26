"""Settings of the server, resolved once and then frozen."""

from __future__ import annotations

from dataclasses import dataclass

from recguide_core.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Address, limits and guards of a server.

    Attributes:
        served_name: the model's name in the API.
        host, port: where it listens; port 0 picks a free one.
        max_queue: answers that may wait for a slot; more are refused with 429.
        request_timeout: seconds after which a request is ended with 504.
        drain_timeout: seconds that running answers get after SIGTERM.
        stall_timeout: seconds without progress after which /health says so.
        max_body: bytes of a request body; max_nesting: brackets inside brackets in it.
        max_choices: answers of one request (prompts x n); max_stops: stop strings.
        max_logprobs: alternatives reported beside a token.
        temperature: of requests that name none; 1 as in the OpenAI API.
        api_key: clients must send it as a bearer token; None lets everybody in.
        cors_origins: web origins that may call the API; none by default.
        speculation_usage: report rounds, forwards and tau in `usage`.
    """

    served_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    max_queue: int = 256
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    stall_timeout: float = 120.0
    max_body: int = 4 << 20
    max_nesting: int = 32
    max_choices: int = 128
    max_stops: int = 16
    max_stop_chars: int = 512
    max_logprobs: int = 20
    temperature: float = 1.0
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    speculation_usage: bool = True

    def __post_init__(self) -> None:
        _between("--port", self.port, 0, 65535)
        _between("--max-queue", self.max_queue, 0, 1_000_000)
        _between("--max-body", self.max_body, 1024, 1 << 30)
        _between("--request-timeout", self.request_timeout, 0.1, 86400)
        _between("--drain-timeout", self.drain_timeout, 0, 86400)
        _between("--stall-timeout", self.stall_timeout, 0.1, 86400)
        _between("--temperature", self.temperature, 0, 2)
        if self.api_key is not None and not self.api_key:
            raise UsageError("The API key is empty.", "Give a key, or leave --api-key away.")
        if self.api_key is not None and not self.api_key.isascii():
            raise UsageError("The API key is not ASCII.", "HTTP headers carry ASCII only.")


def _between(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{option} is {value:g}.", f"Give a value from {least:g} to {most:g}.")
