"""From the names that `--data` takes to prompts, with an account of where they came from."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.datasets import benchmarks
from recguide_core.datasets.benchmarks import BENCHMARKS, Benchmark
from recguide_core.datasets.formats import read_rows
from recguide_core.datasets.records import Prompt, Skipped
from recguide_core.datasets.rows import TURNS, BadRowError, choose_column, conversations
from recguide_core.datasets.trace import Trace
from recguide_core.errors import DataError, UsageError, nearest


@dataclass(slots=True)
class Loaded:
    """Prompts and where they came from.

    Attributes:
        prompts: in file order, set after set.
        skipped: rows left out with their reasons (only when asked to skip).
        sources: data set -> file or hub set; columns: data set -> column that was read.
        turns: which questions of a conversation are asked.
        trace: recorded arrivals and lengths to replay with the prompts' text, or None.
    """

    prompts: list[Prompt] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    turns: str = "last"
    trace: Trace | None = None

    @property
    def datasets(self) -> list[str]:
        return list(self.sources)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows of a user's file are read."""

    column: str | None = None
    turns: str = "last"
    skip_bad_rows: bool = False


def load_prompts(
    names: Sequence[str], data_dir: Path | None = None, options: ReadOptions | None = None
) -> Loaded:
    """Prompts of several sets.

    Args:
        names: `demo`, a benchmark's name, a stand-in's name, or a path to a file.
        data_dir: folder with the benchmarks' JSONL files, or None.

    Raises:
        UsageError: a name that is neither a set nor a file, or one given twice.
        DataError: a set that cannot be found, or a bad row (`file:line: cause`).
    """
    options = options or ReadOptions()
    if options.turns not in TURNS:
        raise UsageError(
            f"No such choice of turns: '{options.turns}'.", nearest(options.turns, TURNS)
        )
    if data_dir is not None and not data_dir.is_dir():
        raise DataError(f"The data directory {data_dir} is no folder.", "Check --data-dir.")
    loaded = Loaded(turns=options.turns)
    for name in names:
        before = len(loaded.prompts)
        _load(name, data_dir, options, loaded)
        if len(loaded.prompts) == before:
            raise DataError(f"{name} has no prompts.", "Check the file, or choose another set.")
    return loaded


def _load(name: str, data_dir: Path | None, options: ReadOptions, into: Loaded) -> None:
    if name in into.sources or Path(name).stem in into.sources:
        raise UsageError(f"The data set '{name}' is named twice.", "Name each set once.")
    if name == "demo":
        _read_file(_demo_file(), "demo", "", ReadOptions(), into)
    elif name in BENCHMARKS:
        _load_benchmark(BENCHMARKS[name], data_dir, into)
    elif name in benchmarks.STAND_INS or name in benchmarks.TRAINING:
        category = {**benchmarks.STAND_INS, **benchmarks.TRAINING}[name]
        found = _in_folder((f"{name}.jsonl",), data_dir)
        if found is None:
            raise _not_found(name, f"{name}.jsonl", data_dir, "")
        _read_file(found, name, category, ReadOptions(), into)
    elif _looks_like_path(name):
        path = Path(name).expanduser()
        _read_file(path, path.name.split(".")[0], "", options, into)
    else:
        raise UsageError(
            f"No data set named '{name}'.",
            f"{nearest(name, benchmarks.known_names())} Or name a file, such as ./{name}.jsonl.",
        )


def _looks_like_path(name: str) -> bool:
    return "/" in name or "\\" in name or "." in name or Path(name).is_file()


def _demo_file() -> Path:
    import recguide_core

    return Path(recguide_core.__path__[0]) / "tiny" / "demo_prompts.jsonl"


def _in_folder(files: Iterable[str], data_dir: Path | None) -> Path | None:
    if data_dir is None:
        return None
    return next((data_dir / name for name in files if (data_dir / name).is_file()), None)


def _not_found(name: str, file: str, data_dir: Path | None, source: str) -> DataError:
    where = f"no {file} in {data_dir}" if data_dir else "no data directory was given"
    from_hub = f" The set is {source}." if source else ""
    return DataError(
        f"The data set '{name}' cannot be found: {where}.",
        f"Set RECGUIDE_DATA_DIR or pass --data-dir with a folder that has {file}.{from_hub}",
    )


def _load_benchmark(benchmark: Benchmark, data_dir: Path | None, into: Loaded) -> None:
    found = _in_folder(benchmark.files, data_dir)
    if found is not None:
        _read_file(found, benchmark.name, benchmark.category, ReadOptions(), into)
        return
    missing = _not_found(benchmark.name, benchmark.files[0], data_dir, benchmark.source)
    if benchmark.stand_in:
        missing.remedy += f" {benchmark.stand_in} is our own set in its style, not the benchmark."
    if benchmark.hub is None:
        raise missing
    if importlib.util.find_spec("datasets") is None:
        missing.remedy += " Or fetch it: pip install 'recguide[hub]'."
        raise missing
    _read_hub(benchmark, missing, into)


def _read_hub(benchmark: Benchmark, missing: DataError, into: Loaded) -> None:
    """Through the `datasets` library, whose faults (no network, gated set) are many and untyped."""
    from datasets import load_dataset

    assert benchmark.hub is not None, "only sets with a hub id are fetched"
    name, config, split = benchmark.hub
    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(name, config, split=split)
    except Exception as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"The data set '{benchmark.name}' cannot be fetched: {cause}", missing.remedy
        ) from error
    into.sources[benchmark.name] = f"{name} ({split})"
    into.columns[benchmark.name] = benchmark.field
    for number, row in enumerate(rows):
        task = benchmarks.task_of_hub_row(benchmark, row)
        into.prompts.append(
            Prompt(
                f"{benchmark.name}/{number}",
                (("user", task),),
                benchmark.name,
                benchmark.category,
            )
        )


def _read_file(path: Path, dataset: str, category: str, options: ReadOptions, into: Loaded) -> None:
    seen: dict[str, int] = {}
    into.sources[dataset] = str(path)
    for line, row in read_rows(path):
        try:
            if isinstance(row, BadRowError):
                raise row
            found = _prompts_of_row(row, line, dataset, category, options)
            for prompt in found:
                if prompt.id in seen:
                    raise BadRowError(
                        f"id '{prompt.id}' was already used on line {seen[prompt.id]}"
                    )
            seen.update((prompt.id, line) for prompt in found)
        except BadRowError as bad:
            if not options.skip_bad_rows:
                raise DataError(
                    f"{path}:{line}: {bad}.",
                    "Mend the row, or leave such rows out: --skip-bad-rows",
                ) from bad
            into.skipped.append(Skipped(str(path), line, str(bad)))
            continue
        into.prompts += found
        if dataset not in into.columns:
            named = isinstance(row, Mapping)
            into.columns[dataset] = choose_column(row, options.column) if named else "messages"


def _prompts_of_row(
    row: Any, line: int, dataset: str, category: str, options: ReadOptions
) -> list[Prompt]:
    columns = row if isinstance(row, Mapping) else {}
    asked = conversations(row, options.column, options.turns)
    name = str(columns.get("id", f"{dataset}/{line}"))
    length = _output_length(columns)
    return [
        Prompt(
            name if len(asked) == 1 else f"{name}#{turn}",
            what.messages,
            dataset,
            str(columns.get("category") or category),
            length,
            what.later,
        )
        for turn, what in enumerate(asked)
    ]


def _output_length(columns: Mapping[Any, Any]) -> int | None:
    value = columns.get("output_len", columns.get("output_length"))
    if value is None or value == "":
        return None
    try:
        length = int(value)
    except (TypeError, ValueError):
        raise BadRowError(f"the output length is '{value}', not a number") from None
    if length < 1:
        raise BadRowError(f"the output length is {length}; it must be at least 1")
    return length


def select(prompts: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """`count` prompts, seeded, the sets taking turns; prompts come again when there are too few.

    Each round of repeats is shuffled anew, so that a repeat never follows its first use at once
    unless the set has one prompt.
    """
    rng = np.random.default_rng(seed)
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.dataset, []).append(prompt)
    decks: dict[str, list[Prompt]] = {name: [] for name in groups}
    chosen: list[Prompt] = []
    while len(chosen) < count:
        for name, group in groups.items():
            if not decks[name]:
                decks[name] = [group[i] for i in rng.permutation(len(group))]
            chosen.append(decks[name].pop())
    return chosen[:count]
