"""An executor that reads from a script: what the model would say is decided by the test.

Every position of a request has its true token (what AR says) and a scripted draft, the same
whichever row drafts it. Tokens differ from position to position, so a block that was drafted for
another place, or verified at another, is noticed at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from recguide_core.engine.core import EngineCore
from recguide_core.engine.planners import Planner
from recguide_core.engine.readings import StepReadings
from recguide_core.engine.settings import EngineSettings
from recguide_core.pages import PageTable
from recguide_core.records import Request, RowKind

MASK, EOS, JUNK = 1, 2, 5


@dataclass(frozen=True)
class Said:
    """Draft at one position: token, margin, best other token."""

    token: int
    margin: float = 1.0
    alt: int = JUNK


@dataclass
class Script:
    """One request: prompt length, true tokens of all positions, drafts that differ from them.

    `at(position)` is the scripted draft; without an entry it is right and certain.
    """

    prompt: int
    truth: list[int]
    drafts: dict[int, Said] = field(default_factory=dict)

    @classmethod
    def plain(cls, prompt: int, length: int = 200, base: int = 1000) -> "Script":
        return cls(prompt, [base + i for i in range(length)])

    def at(self, position: int) -> Said:
        said = self.drafts.get(position)
        return said or Said(self.truth[position] if position < len(self.truth) else JUNK)

    def wrong(self, position: int, *, risky: bool = False, alt_right: bool = False) -> None:
        """The draft at `position` is not what AR says."""
        alt = self.truth[position] if alt_right else JUNK + 1
        self.drafts[position] = Said(JUNK + 2, 0.2 if risky else 0.9, alt)

    def risky(self, position: int) -> None:
        """Right, but with a small margin."""
        self.drafts[position] = Said(self.truth[position], 0.2, JUNK + 3)


class ScriptedExecutor:
    """Plays the scripts; keeps the kinds of rows of every step.

    Attributes:
        kinds: for each step, request key -> row kinds in order.
        verified: (key, P, tokens) of every verify row.
    """

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.scripts = scripts
        self.engine: EngineCore | None = None
        self.kinds: list[dict[str, list[RowKind]]] = []
        self.verified: list[tuple[str, int, list[int]]] = []

    def execute(self, step, needs) -> StepReadings:
        del needs
        assert self.engine is not None
        running = self.engine.scheduler.running
        total = len(step.readout)
        out = StepReadings(
            token=np.full(total, JUNK, np.int64),
            alt=np.full(total, JUNK, np.int64),
            confidence=np.ones(total, np.float32),
            margin=np.ones(total, np.float32),
            entropy=np.full(total, 0.25, np.float32),
        )
        kinds: dict[str, list[RowKind]] = {}
        for row in range(len(step.rows.length)):
            key = running[int(step.rows.request[row])].request.key
            kinds.setdefault(key, []).append(RowKind(int(step.rows.kind[row])))
            self._row(step, row, key, out)
        self.kinds.append(kinds)
        return out

    def _row(self, step, row: int, key: str, out: StepReadings) -> None:
        script, rows = self.scripts[key], step.rows
        first, last = step.row_start[row : row + 2].tolist()
        start = int(rows.start[row])
        tokens = rows.tokens[first:last].tolist()
        if rows.kind[row] == RowKind.VERIFY:
            self.verified.append((key, start, tokens))
        for read in range(*step.read_start[row : row + 2].tolist()):
            place = int(step.readout[read]) - first
            target = int(step.target[read])
            if rows.bidirectional[row]:
                said = script.at(target)
                out.token[read], out.margin[read] = said.token, said.margin
                out.alt[read] = said.alt
                continue
            seen = tokens[: place + 1]
            if seen == script.truth[start : start + place + 1] and target < len(script.truth):
                out.token[read] = script.truth[target]


def scripted_engine(
    scripts: Mapping[str, Script], planners: list[Planner], *, context: int = 150, **settings
) -> EngineCore:
    """An engine over scripts; requests are not submitted yet."""
    settings.setdefault("page_size", 4)
    tokens = settings.pop("kv_tokens", 4096)
    executor = ScriptedExecutor(scripts)
    engine = EngineCore(
        executor=executor,
        pages=PageTable(tokens // settings["page_size"], settings["page_size"]),
        planners=planners,
        settings=EngineSettings(**settings),
        context=context,
        mask_id=MASK,
        eos_ids=frozenset({EOS}),
    )
    executor.engine = engine
    return engine


def scripted_request(key: str, script: Script, max_tokens: int, **options) -> Request:
    prompt = np.array(script.truth[: script.prompt], dtype=np.int64)
    return Request(key, prompt, max_tokens, **options)


def expected_output(script: Script, max_tokens: int, context: int, stops=()) -> list[int]:
    """What AR would emit."""
    end = min(script.prompt + max_tokens, context)
    out = script.truth[script.prompt : end]
    for i, token in enumerate(out):
        if token == EOS or token in stops:
            return out[: i + 1]
    return out


def random_script(rng: np.random.Generator, length: int, eos: bool = False) -> Script:
    """Errors, risks, right and wrong alternatives, missing ones; perhaps an EOS somewhere."""
    s = Script.plain(int(rng.integers(1, 20)), length)
    for position in range(s.prompt, length):
        roll = rng.random()
        if roll < 0.1:
            s.wrong(position, risky=bool(rng.random() < 0.7), alt_right=bool(rng.random() < 0.6))
        elif roll < 0.25:
            s.risky(position)
        elif roll < 0.28:
            s.drafts[position] = Said(JUNK + 2, 0.1, -1)
    if eos and rng.random() < 0.7:
        at = int(rng.integers(s.prompt, length))
        s.truth[at] = EOS
        s.drafts[at] = Said(EOS, float(rng.choice([0.2, 1.0]))) if rng.random() < 0.5 else s.at(at)
    return s
