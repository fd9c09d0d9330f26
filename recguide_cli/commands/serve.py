"""`recguide serve`: an OpenAI-compatible server with a playground page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide_cli import console

if TYPE_CHECKING:
    from recguide_core.serving.launch import LaunchConfig
    from recguide_core.serving.settings import ServerSettings

MODEL, ENGINE, NETWORK, LIMITS = "Model and method", "Engine", "Network", "Limits"


def run(
    model: Annotated[
        str,
        typer.Option(rich_help_panel=MODEL, help="Bundled name, alias (nld-8b), hub id or folder."),
    ] = "nld-tiny",
    method: Annotated[
        str,
        typer.Option(
            rich_help_panel=MODEL,
            help="Of requests that name none: ar, linear, linear:recipe, tidar, dflash, overlap, "
            "adaptive, recguide; auto is recguide where a policy is found, else overlap.",
        ),
    ] = "auto",
    block_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=MODEL, help="B of methods with a fixed block (default: 16)."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=MODEL, help="Policy file of `recguide tune` (default: found)."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", rich_help_panel=MODEL, help="Use a policy made for another model."),
    ] = False,
    served_model_name: Annotated[
        str | None,
        typer.Option(rich_help_panel=MODEL, help="The model's name in the API (default: --model)."),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(rich_help_panel=MODEL, help="Of requests that name none, as OpenAI's: 1."),
    ] = 1.0,
    engine: Annotated[
        str,
        typer.Option(
            rich_help_panel=ENGINE,
            help="auto, embedded or sglang; auto is sglang where there is a CUDA device.",
        ),
    ] = "auto",
    layout: Annotated[
        str,
        typer.Option(rich_help_panel=ENGINE, help="Of SGLang steps: flat, uniform or bucketed."),
    ] = "flat",
    drafter: Annotated[
        Path | None,
        typer.Option(rich_help_panel=ENGINE, help="DFlash drafter: SGLang's own DFLASH decodes."),
    ] = None,
    tp: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="GPUs that share the model (SGLang).")
    ] = 1,
    dp: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="Replicas behind one address (SGLang).")
    ] = 1,
    device: Annotated[
        str, typer.Option(rich_help_panel=ENGINE, help="auto, cpu or cuda[:n].")
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            rich_help_panel=ENGINE,
            help="float32, bfloat16 or float16; auto: float32 on a CPU, bfloat16 on CUDA.",
        ),
    ] = "auto",
    threads: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="CPU threads of torch; 0 leaves them.")
    ] = 0,
    max_requests: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="Requests that run at once (C).")
    ] = 16,
    context: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="Longest sequence; 0 = the model's.")
    ] = 0,
    kv_tokens: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="Tokens of the KV pool; 0 = enough.")
    ] = 0,
    prefill_chunk: Annotated[
        int, typer.Option(rich_help_panel=ENGINE, help="Longest piece of a prompt in one forward.")
    ] = 512,
    batching: Annotated[
        str, typer.Option(rich_help_panel=ENGINE, help="ragged or bucketed.")
    ] = "ragged",
    host: Annotated[
        str, typer.Option(rich_help_panel=NETWORK, help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(rich_help_panel=NETWORK, help="Port to listen on; 0 picks a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RECGUIDE_API_KEY",
            show_envvar=True,
            rich_help_panel=NETWORK,
            help="Clients must send it as a bearer token.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=NETWORK, help="Web origin that may call; can be repeated."),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(rich_help_panel=LIMITS, help="Answers that may wait; more get 429.")
    ] = 256,
    request_timeout: Annotated[
        float, typer.Option(rich_help_panel=LIMITS, help="Seconds after which a request ends.")
    ] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(rich_help_panel=LIMITS, help="Seconds for running answers at the end.")
    ] = 30.0,
    stall_timeout: Annotated[
        float, typer.Option(rich_help_panel=LIMITS, help="Seconds of one step before an alarm.")
    ] = 120.0,
    max_body: Annotated[
        int, typer.Option(rich_help_panel=LIMITS, help="Bytes of a request body.")
    ] = 4 << 20,
    no_speculation_usage: Annotated[
        bool,
        typer.Option(
            "--no-speculation-usage",
            rich_help_panel=LIMITS,
            help="Leave rounds and tau out of usage.",
        ),
    ] = False,
    sglang_flags: Annotated[
        list[str] | None, typer.Argument(help="Flags for SGLang, after --.", metavar="[-- FLAGS]")
    ] = None,
) -> None:
    """Serves the OpenAI API, with a page at / that shows speculation at work.

    Point any OpenAI client at http://HOST:PORT/v1. Needs the extra `serve`.
    One JSON line per request goes to stderr; SIGTERM drains.
    """
    from recguide_cli.commands.serve_sglang import engine_for, plugin_settings, serve_sglang

    if engine_for(engine, model) == "sglang":
        serve_sglang(
            model=model,
            plugin=plugin_settings(method, block_size, layout, policy, force, drafter),
            drafter=None if drafter is None else str(drafter),
            served_name=served_model_name,
            host=host,
            port=port,
            device=device,
            dtype=dtype,
            context=context,
            kv_tokens=kv_tokens,
            max_requests=max_requests,
            tp=tp,
            dp=dp,
            api_key=api_key,
            extra=tuple(sglang_flags or ()),
        )
    _need_extra()
    from recguide_cli.commands.serve_sglang import embedded_device, refuse_sglang_options
    from recguide_core.engine.settings import EngineSettings
    from recguide_core.serving.launch import LaunchConfig
    from recguide_core.serving.settings import ServerSettings

    refuse_sglang_options(sglang_flags, layout, drafter, tp, dp)
    device, dtype = embedded_device(device, dtype)
    settings = ServerSettings(
        served_name=served_model_name or model,
        host=host,
        port=port,
        max_queue=max_queue,
        request_timeout=request_timeout,
        drain_timeout=drain_timeout,
        stall_timeout=stall_timeout,
        max_body=max_body,
        temperature=temperature,
        api_key=api_key,
        cors_origins=tuple(cors_origin or ()),
        speculation_usage=not no_speculation_usage,
    )
    config = LaunchConfig(
        model=model,
        method=method,
        block_size=block_size,
        device=device,
        dtype=dtype,
        policy=policy,
        force=force,
        engine=EngineSettings(
            max_requests=max_requests,
            prefill_chunk=prefill_chunk,
            kv_tokens=kv_tokens,
            context=context,
            batching=batching,
            threads=threads,
        ),
    )
    _serve_embedded(config, settings)


def _need_extra() -> None:
    from importlib.util import find_spec

    from recguide_core.errors import RecGuideError

    missing = [n for n in ("fastapi", "uvicorn", "prometheus_client") if find_spec(n) is None]
    if missing:
        raise RecGuideError(
            f"The server needs {', '.join(missing)}.", 'Install it: pip install "recguide[serve]"'
        )


def _serve_embedded(config: LaunchConfig, settings: ServerSettings) -> None:
    from recguide_core.serving.launch import launch
    from recguide_core.serving.runtime import Runtime
    from recguide_core.serving.server import serve

    console.note(f"Loading {config.model} ...")
    served = launch(config)
    for remark in served.remarks:
        console.note(remark)
    console.note(
        f"{served.default_method} of {', '.join(served.methods)}; context "
        f"{served.engine.context}; ready in {sum(_seconds(served.report)):.1f} s"
    )

    def show(address: str) -> None:
        console.say(f"[bold]RecGuide[/bold] serves {settings.served_name} at {address}")
        console.note(f"API: {address}/v1   page: {address}/   stop: Ctrl-C")

    with _log_on_stderr():
        serve(Runtime(served, settings), show)


def _seconds(report: object) -> list[float]:
    assert hasattr(report, "items")
    return [value for name, value in report.items() if name.endswith("_seconds")]


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    import logging
    import sys

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    loggers = {"recguide": logging.INFO, "uvicorn.error": logging.WARNING}
    for name, level in loggers.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(handler)
