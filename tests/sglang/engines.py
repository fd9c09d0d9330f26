"""Both engines for a test: SGLang's in a child process, the embedded one right here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import bundled_folder, load_model
from recguide_core.records import Request
from recguide_core.sglang_plugin.settings import PluginSettings, write_settings
from recguide_core.sglang_plugin.trace import round_lines

HERE = Path(__file__).parent
TEXTS = [
    "Tom has 12 apples and buys 5 more. How many apples has Tom?",
    "Write a function that adds two numbers.",
    "List the days of the week.",
    "Say hello.",
    "What is 17 plus 25?",
    "Sort these numbers: 4, 2, 9.",
    "Kevin shares 36 cookies equally among six shelves. How many cookies are on a shelf?",
    "Repeat the word cat three times.",
]
LENGTHS = [48, 96, 24, 7, 64, 33, 80, 1]
"""Tokens asked of each text when all eight run at once."""
TIMEOUT = 400
CHECKS = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
"""SGLang's leak check at every step, and its check of double free and use after free."""


def cpu_environment(settings, folder, **more):
    """Environment of a CPU server with these plugin settings."""
    path = folder / "recguide.json"
    write_settings(path, settings)
    return {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "OMP_NUM_THREADS": "1",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "recguide_core.sglang_plugin.models",
        "RECGUIDE_SGLANG_CONFIG": str(path),
        "PYTHONPATH": str(HERE / "shims"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **CHECKS,
        **more,
    }


def run_sglang(folder, waves, settings=None, engine=None, model=None, environment=None):
    """Run waves of requests through a fresh engine; its record, see `child`."""
    job, result = folder / "job.json", folder / "result.json"
    body = {"model": str(model or bundled_folder()), "engine": engine or {}, "waves": waves}
    job.write_text(json.dumps(body), encoding="utf-8")
    env = cpu_environment(settings or PluginSettings(), folder, **(environment or {}))
    with (folder / "engine.log").open("w") as log:
        code = subprocess.run(
            ["nice", "-n", "5", sys.executable, str(HERE / "child.py"), str(job), str(result)],
            env=env, stdout=log, stderr=subprocess.STDOUT, timeout=TIMEOUT, check=False,
            start_new_session=True,
        ).returncode  # fmt: skip
    text = (folder / "engine.log").read_text(errors="replace")
    assert code == 0 and result.is_file(), f"the engine ended with {code}:\n{text[-4000:]}"
    assert "leak" not in text.lower(), text[-4000:]
    record = json.loads(result.read_text(encoding="utf-8"))
    record["log"] = text
    return record


def plain_tokenizer(folder):
    """Special tokens as plain strings: transformers takes the bare dict form for a mistake."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                "eos_token": "<|im_end|>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def greedy(key, ids, tokens, **params):
    """A greedy request for `run_sglang`."""
    body = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **params}
    return {"key": key, "ids": list(map(int, ids)), "params": body}


class Embedded:
    """The embedded engine over one model, with the rounds of its last run."""

    def __init__(self, model=None, max_positions=None):
        name = str(model) if model else "nld-tiny"
        self.model = load_model(name, max_positions=max_positions)
        self.rounds = []

    def encode(self, text):
        return self.model.tokenizer.encode(self.model.render([{"role": "user", "content": text}]))

    def run(self, requests, method="ar", block=0, guidance=None, positions=32):
        """Finished records by key for requests made by `greedy`; block: what they insist on."""
        planner = make_planner(method, None, guidance)
        settings = EngineSettings(max_requests=8, prefill_chunk=0, entropy_positions=positions)
        engine = Engine(self.model, planners=[planner], settings=settings)
        self.rounds = []
        engine.observers.append(self)
        for r in requests:
            params = r["params"]
            engine.submit(
                Request(
                    r["key"],
                    np.array(r["ids"]),
                    params["max_new_tokens"],
                    ignore_eos=params["ignore_eos"],
                    stop_ids=frozenset(params.get("stop_token_ids") or ()),
                ),
                fixed_block=block,
            )
        return {e.finished.key: e.finished for e in engine.run() if e.finished is not None}

    def on_rounds(self, view):
        source = view.table.draft_source[view.outcome.who].copy()
        source[~view.table.has_draft[view.outcome.who]] = 0
        keys = [view.keys[s] for s in view.outcome.who.tolist()]
        entry, tokens = view.verified.entry, view.verified.tokens
        self.rounds += round_lines(keys, view.plan, entry, view.outcome, source, tokens)
