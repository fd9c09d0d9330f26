"""The options of `recguide bench`, by the panel of the help that they stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOAD, DATA, MODEL, POLICY, RESULT = "Load", "Data", "Model and engine", "Policy", "Result"
SUITE = "Suites and simulation"

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[compare RUN RUN]", help="Compare two saved runs."),
]
Model = Annotated[
    str,
    typer.Option(rich_help_panel=MODEL, help="Bundled name, alias (nld-8b), hub id or folder."),
]
Data = Annotated[
    str,
    typer.Option(
        rich_help_panel=DATA,
        help="Comma list of sets: demo, gsm8k, math500, humaneval, mbpp, ifeval, aime25, "
        "livecodebench, gpqa, or files (.jsonl .json .csv .parquet .txt).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="RECGUIDE_DATA_DIR",
        rich_help_panel=DATA,
        help="Folder with the benchmarks' JSONL files.",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(rich_help_panel=DATA, help="Column with the prompt (default: guessed)."),
]
Turns = Annotated[
    str,
    typer.Option(
        rich_help_panel=DATA,
        help="Of a conversation ask: first, last, all; chat: all, after the model's own answers.",
    ),
]
Template = Annotated[
    str,
    typer.Option(
        rich_help_panel=DATA,
        help="plain: chat template; instruct: with the benchmark's instruction; raw: neither.",
    ),
]
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", rich_help_panel=DATA, help="Leave bad rows out, listed."),
]
Methods = Annotated[
    str,
    typer.Option(
        rich_help_panel=LOAD,
        help="Comma list: ar, linear, linear:recipe, tidar, dflash, overlap, adaptive, recguide.",
    ),
]
BlockSize = Annotated[
    str,
    typer.Option(
        rich_help_panel=LOAD,
        help="Comma list of B: one row each for linear, tidar, dflash, overlap.",
    ),
]
Concurrency = Annotated[
    str, typer.Option(rich_help_panel=LOAD, help="Comma list of requests kept in flight.")
]
Rate = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=LOAD,
        help="Comma list of requests per second, instead of a number in flight.",
    ),
]
Arrivals = Annotated[
    str, typer.Option(rich_help_panel=LOAD, help="With --rate: poisson or constant.")
]
Ramp = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=LOAD,
        help="Numbers in flight to pass through, 1:32:1; simulated: the rate to rise to.",
    ),
]
Replay = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=LOAD,
        help="Repeat the arrivals and lengths of a trace: JSONL with timestamp, input_length, "
        "output_length and hash_ids.",
    ),
]
Speed = Annotated[
    str,
    typer.Option(rich_help_panel=LOAD, help="With --replay: comma list of factors, 2 = faster."),
]
TimeUnit = Annotated[
    str, typer.Option(rich_help_panel=LOAD, help="Timestamps of the trace: auto, ms or s.")
]
SloTtft = Annotated[
    float | None,
    typer.Option(rich_help_panel=LOAD, help="Goodput: most ms to the first token."),
]
SloTpot = Annotated[
    float | None,
    typer.Option(rich_help_panel=LOAD, help="Goodput: most ms a token after it."),
]
Requests = Annotated[
    int | None,
    typer.Option(rich_help_panel=LOAD, help="Requests per cell (default: 2 C within 32..128)."),
]
MaxTokens = Annotated[int, typer.Option(rich_help_panel=LOAD, help="Output limit of a request.")]
Warmup = Annotated[int, typer.Option(rich_help_panel=LOAD, help="Requests before the window.")]
CooldownRequests = Annotated[
    int,
    typer.Option(
        "--cooldown",
        rich_help_panel=LOAD,
        help="Requests, at most, that hold the load up at the window's end.",
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", rich_help_panel=LOAD, help="Go on to the limit, past EOS."),
]
Seed = Annotated[int, typer.Option(rich_help_panel=LOAD, help="Seed of the choice of prompts.")]
Engine = Annotated[
    str,
    typer.Option(rich_help_panel=MODEL, help="embedded, or sglang: a server is started for it."),
]
Tp = Annotated[
    int,
    typer.Option(rich_help_panel=MODEL, help="--engine sglang: GPUs that share the model."),
]
Device = Annotated[str, typer.Option(rich_help_panel=MODEL, help="cpu or cuda[:n].")]
AttentionBackend = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL, help="torch, triton or flashinfer (default: the fastest that fits)."
    ),
]
Dtype = Annotated[str, typer.Option(rich_help_panel=MODEL, help="float32, bfloat16 or float16.")]
Threads = Annotated[
    int, typer.Option(rich_help_panel=MODEL, help="CPU threads of torch; 0 leaves them.")
]
KvTokens = Annotated[
    int | None,
    typer.Option(rich_help_panel=MODEL, help="Tokens of the KV pool (default: enough)."),
]
PrefillChunk = Annotated[
    int, typer.Option(rich_help_panel=MODEL, help="Longest piece of a prompt in one forward.")
]
Clock = Annotated[
    str,
    typer.Option(
        rich_help_panel=MODEL, help="wall, or charge time from a profile, e.g. b200/nld-8b."
    ),
]
Batching = Annotated[
    str,
    typer.Option(
        rich_help_panel=POLICY, help="Blocks of several sizes: ragged, bucketed or padded."
    ),
]
Policy = Annotated[
    Path | None,
    typer.Option(rich_help_panel=POLICY, help="Policy file (default: the one that fits)."),
]
Tables = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=POLICY,
        help="Folder of policy and tables (default: runs/tables, then the shipped ones).",
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", rich_help_panel=POLICY, help="Take a policy that does not fit."),
]
HeldOut = Annotated[
    bool,
    typer.Option(
        "--held-out", rich_help_panel=POLICY, help="Leave out prompts that made the policy."
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=SUITE, help="A fixed set of runs as one report: method, paper, plan."
    ),
]
Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate", rich_help_panel=SUITE, help="No model: acceptance model on a clock."
    ),
]
Gpu = Annotated[str, typer.Option("--gpu", rich_help_panel=SUITE, help="Device to simulate.")]
Host = Annotated[
    str,
    typer.Option(
        rich_help_panel=SUITE,
        help="Host time to simulate: none, serving (as in a public table), or ms a step and "
        "ms a request, e.g. 2.5,0.1.",
    ),
]
PromptTokens = Annotated[
    int,
    typer.Option(
        rich_help_panel=SUITE,
        help="Simulated prompts; 0 leaves prompt passes out (context 800 each).",
    ),
]
Waiting = Annotated[
    float,
    typer.Option(rich_help_panel=SUITE, help="Simulated requests per place of a batch."),
]
Traces = Annotated[
    Path | None,
    typer.Option(rich_help_panel=SUITE, help="Simulate the requests of this trace table."),
]
TargetTps = Annotated[
    float | None,
    typer.Option(rich_help_panel=SUITE, help="plan: tokens a second that a request must get."),
]
TargetTpot = Annotated[
    float | None,
    typer.Option(rich_help_panel=SUITE, help="plan: most milliseconds a token."),
]
NoCheck = Annotated[
    bool,
    typer.Option("--no-check", rich_help_panel=RESULT, help="Do not compare with AR."),
]
Check = Annotated[
    Path | None,
    typer.Option(rich_help_panel=RESULT, help="Compare the texts of a saved run with AR."),
]
StrictLossless = Annotated[
    bool,
    typer.Option("--strict-lossless", rich_help_panel=RESULT, help="Near-ties fail as well."),
]
Bitwise = Annotated[
    bool,
    typer.Option(
        "--bitwise",
        rich_help_panel=RESULT,
        help="CPU: compute deciding tokens one by one (slow); AR must decide bit for bit the same.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(rich_help_panel=RESULT, help="Folder of the run (default: runs/<date>)."),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", rich_help_panel=RESULT, help="Go on with the run in --out."),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", rich_help_panel=RESULT, help="Replace the run in --out."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=RESULT, help="One JSON line on stdout."),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="Measure an OpenAI-compatible server, e.g. http://127.0.0.1:8000.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="RECGUIDE_API_KEY", rich_help_panel=MODEL, help="Key of that server."),
]
Timeout = Annotated[
    float, typer.Option(rich_help_panel=MODEL, help="Seconds that an answer may take.")
]
