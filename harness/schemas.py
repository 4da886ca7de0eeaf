"""What a configuration may hold. ``read`` turns the composed configuration into a ``Plan``, or says what is wrong.

A strategy and an engine are checked against their own factories (``options.py``), the rest against the dataclasses here.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException, ValidationError

from harness.errors import UserError
from harness.options import check_options, choose, said, wanted
from harness.records import Sampling
from harness.suites import SuiteConfig
from harness.under_load import Load

Schema = TypeVar("Schema")

GROUPS = ("strategy", "arms", "engine", "model", "suite", "sampling", "measure")

# What an engine adds when it builds a strategy. What the harness adds when it builds an engine, and the name it keeps.
STRATEGY_IS_GIVEN = ("target",)
ENGINE_IS_GIVEN = ("model", "strategies", "name")


@dataclass(frozen=True)
class SamplingConfig(Sampling):
    """The ``sampling`` group."""

    def __post_init__(self) -> None:
        _require("sampling.temperature", self.temperature, 0 <= self.temperature < math.inf, "0 (greedy) or more")
        _require("sampling.top_k", self.top_k, self.top_k >= 0, "0 (no limit) or more")
        _require("sampling.top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1 (no limit)")
        _require("sampling.seed", self.seed, 0 <= self.seed < 2**63, "0 or more, and below 2**63")
        _require("sampling.max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "1 or more")


@dataclass(frozen=True)
class MeasureConfig:
    """The ``measure`` group. ``baseline`` names the arm to compare with; None: no speedups.

    ``round_times`` False leaves the phases of the rounds untimed, to see what timing them costs. ``concurrency`` and
    ``rate`` put the engine under load (``harness.under_load.Load``); both ``None``: strategies interleaved, ``batch`` requests
    at once.
    """

    repetitions: int = 1
    seed: int = 0
    warmup: int = 1
    baseline: str | None = "baseline"
    root: str = "results/runs"
    round_times: bool = True
    batch: int = 1
    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        _require("measure.repetitions", self.repetitions, self.repetitions >= 1, "1 or more")
        _require("measure.seed", self.seed, self.seed >= 0, "0 or more")
        _require("measure.warmup", self.warmup, self.warmup >= 0, "0 (no warm-up) or more")
        _require("measure.root", self.root, bool(self.root), "a folder")
        _require("measure.batch", self.batch, self.batch >= 1, "1 (each request alone) or more")
        _require("measure.concurrency", self.concurrency, self.concurrency is None or self.concurrency >= 1, "1 or more, or null")
        _require("measure.rate", self.rate, self.rate is None or 0 < self.rate < math.inf, "above 0 arrivals a second, or null")
        if self.concurrency is not None and self.rate is not None:
            raise UserError(f"measure.rate={self.rate} and measure.concurrency={self.concurrency}: a load has one of the two; take the other away")
        if self.batch > 1 and self.load:
            key, value = ("rate", self.rate) if self.rate else ("concurrency", self.concurrency)
            raise UserError(f"measure.batch={self.batch} and measure.{key}={value}: under load requests come one by one; take one of the two away")

    @property
    def load(self) -> Load | None:
        """``None``: one request, or one batch, at a time."""
        return Load(self.concurrency, self.rate) if self.concurrency or self.rate else None

    @property
    def order(self) -> str:
        """How requests follow one another, in words for the result."""
        if self.load is None:
            at_once = "one request" if self.batch == 1 else f"a batch of {self.batch} requests"
            return f"{at_once} at a time, strategies interleaved"
        if self.concurrency:
            return f"{self.concurrency} conversations at a time (closed loop), strategies in turns A B, B A"
        return f"{self.rate:g} conversations a second at Poisson times (open loop), strategies in turns A B, B A"


@dataclass(frozen=True)
class ModelConfig:
    """The ``model`` group: a Hugging Face folder or GGUF file at ``path``, or the function ``source`` that finds one."""

    name: str
    path: str | None = None
    source: str | None = None
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.path and not self.source:
            raise UserError("model.path=null: say where the model is: model.path=FOLDER or model.path=FILE.gguf")


@dataclass(frozen=True)
class Plan:
    """A run, checked. ``arms`` holds every strategy that is measured, the one of interest last."""

    interest: str
    arms: dict[str, DictConfig]
    engine: DictConfig
    model: DictConfig
    suite: SuiteConfig
    sampling: Sampling
    measure: MeasureConfig

    @property
    def label(self) -> str:
        """``<strategy>-<engine>-<model>-<suite>``, for the run's folder."""
        return "-".join([self.interest, self.engine.name, self.model.name, self.suite.name])

    @property
    def history_of(self) -> str | None:
        """The arm whose answers are every arm's history; ``None``: each arm keeps its own."""
        return self.measure.baseline if self.suite.history == "baseline" else None


def read(config: DictConfig) -> Plan:
    """The plan that a composed configuration describes. Raises ``UserError`` with the value and the way out."""
    for key in config:
        if key not in GROUPS:
            raise UserError(f"{key}: unknown key; {choose(str(key), GROUPS)}")
        if not isinstance(config[key], DictConfig):
            raise UserError(f"{key}={said(config[key])}: is a group of keys, not a value; leave it out")
    measure = fill(MeasureConfig, "measure", config.measure)
    arms = _arms(config)
    if measure.baseline is not None and measure.baseline not in arms:
        raise UserError(
            f"measure.baseline={measure.baseline}: is not measured; {choose(measure.baseline, arms)}, or null"
        )
    suite = fill(SuiteConfig, "suite", config.suite)
    if suite.history == "baseline" and measure.load:
        raise UserError("suite.history=baseline: under load strategies take turns and each answers itself; take suite.history=own")
    if suite.history == "baseline" and measure.baseline is None:
        raise UserError("suite.history=baseline: measure.baseline=null names none; name an arm, or suite.history=own")
    check_options("engine", config.engine, ENGINE_IS_GIVEN)
    fill(ModelConfig, "model", config.model)
    return Plan(
        interest=config.strategy.name,
        arms=arms,
        engine=config.engine,
        model=config.model,
        suite=suite,
        sampling=fill(SamplingConfig, "sampling", config.sampling),
        measure=measure,
    )


def leave_out_unserved(config: DictConfig) -> list[str]:
    """Take the arms out of a checked ``config`` that its engine cannot measure, and the baseline with its own; a line about them.

    An engine says so itself (``measurable``).
    """
    factory = get_object(config.engine._target_)
    if not hasattr(factory, "measurable"):
        return []
    options = {name: value for name, value in config.engine.items() if name not in ("_target_", "name")}
    names = [*(name for name in config.arms if name != config.strategy.name), config.strategy.name]
    kept = factory.measurable(names, config.strategy.name, **options)
    gone = [name for name in names if name not in kept]
    if not gone:
        return []
    with open_dict(config):
        config.arms = {name: arm for name, arm in config.arms.items() if name in kept}
        if config.measure.get("baseline") in gone:
            config.measure.baseline = None
    return [f"not measured, for engine={config.engine.name} was given nothing to measure them with: {', '.join(gone)}"]


def fill(schema: type[Schema], group: str, config: DictConfig) -> Schema:
    """An instance of the dataclass ``schema`` with the values of ``config``, converted and validated."""
    known = {field.name: field for field in fields(schema)}
    for name in config:
        if name not in known:
            raise UserError(f"{group}.{name}: unknown key; {choose(str(name), known)}")
    missing = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING and n not in config]
    if missing:
        raise UserError(f"{group}.{missing[0]}: missing; add it with +{group}.{missing[0]}=VALUE")
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config))
    except OmegaConfBaseException as error:
        name = str(error.full_key or error.key)
        words = wanted(get_type_hints(schema).get(name)) if isinstance(error, ValidationError) else None
        if words is None:
            raise UserError(f"{group}.{name}: {str(error.msg or error).splitlines()[0]}; give it another value") from error
        value = config[name]
        whole = f"; write {value:.0f}" if isinstance(value, float) and value.is_integer() else ""
        raise UserError(f"{group}.{name}={said(value)}: must be {words}{whole}") from error


def _arms(config: DictConfig) -> dict[str, DictConfig]:
    arms = {str(name): arm for name, arm in config.arms.items()}
    for name, arm in arms.items():
        if not isinstance(arm, DictConfig):
            raise UserError(f"arms.{name}={said(arm)}: is no strategy; take an arm away with ~arms.{name}")
        check_options(f"arms.{name}", arm, STRATEGY_IS_GIVEN)
    check_options("strategy", config.strategy, STRATEGY_IS_GIVEN)
    # The strategy of interest takes the place of an arm of the same name, with the options given to it.
    arms.pop(config.strategy.name, None)
    return {**arms, config.strategy.name: config.strategy}


def _require(key: str, value: Any, fits: bool, wanted: str) -> None:
    if not fits:
        raise UserError(f"{key}={value}: must be {wanted}")
