"""The eight benchmarks of the paper: files, hub sets, categories and instruction templates.

`*_style_own` sets are stand-ins written for this project; they keep their names in every table and
never answer to the name of the benchmark whose style they have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recguide_core.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One named set.

    Attributes:
        files: names tried in the data directory, in order.
        hub: set, config and split for the `datasets` library, or None.
        field: column that holds the task.
        source: where to get it, for the error that says it is missing.
        stand_in: our own set in its style, or "".
    """

    name: str
    category: str
    files: tuple[str, ...]
    hub: tuple[str, str | None, str] | None
    field: str
    source: str
    stand_in: str = ""


def _free(name: str, category: str, hub: tuple[str, str | None, str], field: str) -> Benchmark:
    files = (f"{name}_test.jsonl", f"{name}.jsonl")
    return Benchmark(name, category, files, hub, field, f"'{hub[0]}' on the Hugging Face hub")


BENCHMARKS: Mapping[str, Benchmark] = {
    b.name: b
    for b in (
        _free("gsm8k", "math", ("openai/gsm8k", "main", "test"), "question"),
        _free("math500", "math", ("HuggingFaceH4/MATH-500", None, "test"), "problem"),
        Benchmark(
            "aime25",
            "math",
            ("aime25.jsonl", "aime25_test.jsonl"),
            ("math-ai/aime25", None, "test"),
            "problem",
            "'math-ai/aime25' on the Hugging Face hub (the problems belong to the MAA)",
            "aime_style_own",
        ),
        _free("humaneval", "code", ("openai/openai_humaneval", None, "test"), "prompt"),
        _free("mbpp", "code", ("google-research-datasets/mbpp", "full", "test"), "text"),
        Benchmark(
            "livecodebench",
            "code",
            ("livecodebench.jsonl", "livecodebench_test.jsonl"),
            None,
            "question_content",
            "'livecodebench/code_generation_lite' on the Hugging Face hub, release_v6 as JSONL",
            "lcb_style_own",
        ),
        Benchmark(
            "gpqa",
            "qa_if",
            ("gpqa.jsonl", "gpqa_diamond.jsonl"),
            ("Idavidrein/gpqa", "gpqa_diamond", "train"),
            "Question",
            "'Idavidrein/gpqa' on the Hugging Face hub (gated: accept its terms and log in)",
            "gpqa_style_own",
        ),
        _free("ifeval", "qa_if", ("google/IFEval", None, "train"), "prompt"),
    )
}

STAND_INS: Mapping[str, str] = {
    "aime_style_own": "math",
    "lcb_style_own": "code",
    "gpqa_style_own": "qa_if",
}
"""Our stand-ins and their categories; files `<name>.jsonl` of the data directory."""

TRAINING: Mapping[str, str] = {"gsm8k_train": "math", "mbpp_train": "code"}
"""Training halves, for calibration on prompts that no result is measured on."""

CATEGORIES = ("math", "code", "qa_if")

_BOXED = "Reason step by step and give the final answer in \\boxed{}."
_INSTRUCTIONS: Mapping[str, str] = {
    "gsm8k": f"{{task}}\n\n{_BOXED}",
    "math500": f"{{task}}\n\n{_BOXED}",
    "aime25": f"{{task}}\n\n{_BOXED}",
    "aime_style_own": f"{{task}}\n\n{_BOXED}",
    "humaneval": "Complete this Python function.\n\n```python\n{task}\n```",
    "mbpp": "You are a Python programmer. {task}",
    "livecodebench": "{task}\n\nAnswer with one Python program in a ```python fence.",
    "lcb_style_own": "{task}\n\nAnswer with one Python program in a ```python fence.",
    "gpqa": "{task}\n\nEnd your answer with the letter of the right choice.",
    "gpqa_style_own": "{task}\n\nEnd your answer with the letter of the right choice.",
}

TEMPLATES = ("plain", "instruct", "raw")
"""plain: the task in the model's chat template; instruct: with the benchmark's instruction too;
raw: the bare text, without chat template."""


def known_names() -> list[str]:
    """Every name that `--data` takes beside a file."""
    return ["demo", *BENCHMARKS, *STAND_INS, *TRAINING]


def check_template(template: str) -> str:
    """The template's name if it exists, else UsageError."""
    if template not in TEMPLATES:
        raise UsageError(f"No template named '{template}'.", nearest(template, TEMPLATES))
    return template


def instruction(dataset: str, template: str) -> str:
    """The instruction around a task of this set, with `{task}` where the text goes."""
    return _INSTRUCTIONS.get(dataset, "{task}") if template == "instruct" else "{task}"


def template_hash(datasets: list[str], template: str) -> str:
    """Names the instructions in force; recorded with every run."""
    text = "\n".join(f"{name}:{instruction(name, template)}" for name in sorted(datasets))
    return hashlib.sha256(f"{template}\n{text}".encode()).hexdigest()[:16]


def task_of_hub_row(benchmark: Benchmark, row: Mapping[str, Any]) -> str:
    """Task text of a row in the hub's own columns."""
    task = str(row[benchmark.field])
    if benchmark.name == "mbpp":
        tests = "\n".join(str(test) for test in row.get("test_list", ()))
        return f"{task}\n\nTests:\n{tests}" if tests else task
    if benchmark.name == "gpqa":
        right = [str(row["Correct Answer"])]
        choices = sorted(right + [str(row[f"Incorrect Answer {i}"]) for i in (1, 2, 3)])
        # Sorted text puts the right choice at a place that does not depend on which it is.
        letters = (f"({letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
        return f"{task}\n" + "\n".join(letters)
    return task
