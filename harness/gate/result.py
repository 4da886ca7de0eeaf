"""What the gate keeps of a run: a few numbers for each answer, and what the run was of. Pure, and plain JSON."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from harness import metrics
from harness.records import Decoded
from harness.store import Cell

# Several prompts under one name: repetitions of a later turn whose own answers before it differed.
VARIES = "varies"


@dataclass(frozen=True)
class Outcome:
    """One repetition's answer. ``accepted`` sums over rounds; an answer of one token has no speed."""

    tokens_sha256: str
    output_tokens: int
    rounds: int
    accepted: int
    decode_tokens_per_s: float | None

    def __post_init__(self) -> None:
        counts, speed = (self.output_tokens, self.rounds, self.accepted), self.decode_tokens_per_s
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"tokens, rounds, accepted {counts}: must be whole numbers")
        if speed is not None and not 0 < speed < math.inf:
            raise ValueError(f"decode_tokens_per_s {speed}: must be above 0")

    @classmethod
    def of(cls, decoded: Decoded) -> Outcome:
        """Token ids, or the text where there are none, are hashed, ids as decimals with spaces between; 16 digits are kept."""
        digest = hashlib.sha256(" ".join(map(str, decoded.output)).encode()).hexdigest()[:16]
        speed = metrics.decode_tokens_per_s(decoded)
        rounded = None if speed is None else float(f"{speed:.6g}")
        return cls(digest, metrics.output_tokens(decoded), metrics.rounds(decoded), metrics.accepted(decoded), rounded)


@dataclass(frozen=True)
class Answer:
    """A strategy's answers to one prompt and turn, by repetition; ``None``: failed, or not measured."""

    prompt: str
    turn: int
    strategy: str
    prompt_sha256: str
    outcomes: tuple[Outcome | None, ...]
    failed: int = 0

    def __post_init__(self) -> None:
        _require_kinds(self, str, "prompt", "strategy", "prompt_sha256")
        _require_kinds(self, int, "turn", "failed")

    @property
    def measured(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome is not None]

    def to_json(self) -> dict[str, Any]:
        names = [f.name for f in fields(Outcome)]
        columns = {name: [o and getattr(o, name) for o in self.outcomes] for name in names}
        return {**{n: getattr(self, n) for n in ("prompt", "turn", "strategy", "prompt_sha256", "failed")}, **columns}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Answer:
        columns = zip(*(row[f.name] for f in fields(Outcome)), strict=True)
        outcomes = tuple(None if values[0] is None else Outcome(*values) for values in columns)
        return cls(row["prompt"], row["turn"], row["strategy"], row["prompt_sha256"], outcomes, row["failed"])


@dataclass(frozen=True)
class About:
    """What a run was of. ``strategies`` holds each arm's options, ``machine`` what speed depends on, ``batch`` how many
    requests were decoded together. ``load`` says how many conversations were under way, ``None`` for a run under none.
    """

    model: str
    model_sha256: str
    dtype: str
    engine: str
    suite: str
    suite_sha256: str
    sampling: Mapping[str, Any]
    baseline_arm: str | None
    strategies: Mapping[str, Mapping[str, Any]]
    machine: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    load: str | None = None

    def __post_init__(self) -> None:
        _require_kinds(self, str, "model", "model_sha256", "dtype", "engine", "suite", "suite_sha256")
        _require_kinds(self, str | None, "baseline_arm", "load")
        _require_kinds(self, int, "batch")
        _require_kinds(self, Mapping, "sampling", "strategies", "machine", "code")
        if not all(isinstance(options, Mapping) for options in self.strategies.values()):
            raise ValueError("strategies: not a mapping from names to options")
        if not isinstance(self.sampling.get("temperature"), (int, float)):
            raise ValueError(f"sampling.temperature: {self.sampling.get('temperature')} is no number")

    @property
    def greedy(self) -> bool:
        return self.sampling["temperature"] == 0

    @property
    def exact(self) -> bool:
        """Greedy decoding in fp32: tokens and rounds depend on target, drafter and prompt alone."""
        return self.greedy and self.dtype == "float32"

    def by_the_clock(self, strategy: str) -> bool:
        """Whether an option is left to what the machine's clock says (``budget: auto``): then no rounds are like the last ones."""
        return "auto" in self.strategies.get(strategy, {}).values()


@dataclass(frozen=True)
class Result:
    about: About
    answers: tuple[Answer, ...]

    def of(self, strategy: str) -> dict[tuple[str, int], Answer]:
        return {(a.prompt, a.turn): a for a in self.answers if a.strategy == strategy}

    def to_json(self) -> dict[str, Any]:
        return {"format": 1, "about": asdict(self.about), "answers": [answer.to_json() for answer in self.answers]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        return cls(About(**data["about"]), tuple(Answer.from_json(row) for row in data["answers"]))


def from_run(cells: Iterable[Cell], config: Mapping[str, Any], environment: Mapping[str, Any]) -> Result:
    """A run's cells, its resolved configuration and its environment, condensed."""
    grouped: dict[tuple, list[Cell]] = defaultdict(list)
    for cell in cells:
        grouped[cell.key.prompt, cell.key.turn, cell.key.strategy].append(cell)
    answers = (_answer(key, grouped[key]) for key in sorted(grouped))
    return Result(_about(config, environment), tuple(answers))


def _answer(key: tuple[str, int, str], cells: list[Cell]) -> Answer:
    outcomes: list[Outcome | None] = [None] * (1 + max(cell.key.repetition for cell in cells))
    for cell in cells:
        outcomes[cell.key.repetition] = Outcome.of(cell.decoded) if cell.decoded else None
    prompts = {cell.prompt_sha256 for cell in cells if cell.prompt_sha256}
    sha256 = VARIES if len(prompts) > 1 else "".join(prompts)
    return Answer(*key, sha256, tuple(outcomes), sum(cell.failure is not None for cell in cells))


def _about(config: Mapping[str, Any], environment: Mapping[str, Any]) -> About:
    engine, suite, measure = environment["engine"], environment["suite"], config["measure"]
    arms = {**config["arms"], config["strategy"]["name"]: config["strategy"]}
    options = {name: {k: _unplaced(v) for k, v in arm.items() if k != "name"} for name, arm in arms.items()}
    machine = {
        "cpu": environment["cpu"]["model"],
        "cores": environment["cpu"]["usable_cores"],
        "gpus": [gpu.get("name") for gpu in environment["gpus"]],
        "device": engine.get("device"),
        "threads": engine.get("threads"),
    }
    code = {
        "git": environment["git"],
        "torch": (environment["torch"] or {}).get("version"),
        "drafters": engine.get("drafters"),
    }
    return About(
        model=config["model"]["name"],
        model_sha256=engine.get("model_sha256") or f"unknown checksum of {config['model']['name']}",
        dtype=str(engine.get("dtype") or config["model"]["dtype"]).removeprefix("torch."),
        engine=config["engine"]["name"],
        suite=suite["name"],
        suite_sha256=suite["sha256"],
        sampling=dict(config["sampling"]),
        baseline_arm=measure["baseline"],
        strategies=options,
        machine=machine,
        code=code,
        batch=measure.get("batch", 1),
        load=next((f"measure.{key}={measure[key]}" for key in ("concurrency", "rate") if measure.get(key)), None),
    )


def _require_kinds(record: Any, kind: Any, *names: str) -> None:
    """What a file holds may be anything; better to say so here than to stumble over it later."""
    for name in names:
        if not isinstance(value := getattr(record, name), kind):
            raise ValueError(f"{name}: {value!r} is not what belongs there")


def _unplaced(value: Any) -> Any:
    """An option without the place where this machine keeps a file: a stored baseline travels."""
    return value.rstrip("/").rpartition("/")[2] if isinstance(value, str) and value.startswith("/") else value
