"""Does a strategy still say what the baseline says, and where it does not, how near to a tie was the target?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from harness.store import Cell, Key
from harness.summary import pairs

LOUD = "NOT LOSSLESS"


@dataclass(frozen=True)
class Divergence:
    """An output that is not the baseline's of the same prompt. ``index`` is the first output token that differs.

    It is ``None`` for answers that were compared as text. ``margin`` is the target's best logit minus its second best at
    that index, ``None`` where the engine gave none.
    """

    key: Key
    index: int | None
    margin: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {**self.key._asdict(), "index": self.index, "margin": self.margin}


@dataclass(frozen=True)
class Comparison:
    """A strategy against the baseline, or the baseline against itself.

    Only outputs to the same prompt are ``compared``. ``other_prompts`` counts later turns of conversations that had
    gone different ways before: their outputs answer different questions, so they are in no share here.
    """

    compared: int
    other_prompts: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> float | None:
        """Outputs equal to the baseline's, token for token / compared [-]."""
        return 1 - len(self.divergences) / self.compared if self.compared else None

    def with_margins(self, margins: Mapping[Key, float | None]) -> Comparison:
        return replace(self, divergences=tuple(replace(d, margin=margins.get(d.key)) for d in self.divergences))

    def to_json(self) -> dict[str, Any]:
        margins = [d.margin for d in self.divergences if d.margin is not None]
        indices = [d.index for d in self.divergences if d.index is not None]
        return {
            "compared": self.compared,
            "other_prompts": self.other_prompts,
            "identical": self.identical,
            "first_difference_median": median(indices) if indices else None,
            "margins": len(margins),
            "margin_median": median(margins) if margins else None,
            "margin_max": max(margins, default=None),
            "divergences": [d.to_json() for d in self.divergences],
        }


def first_difference(mine: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first index at which two outputs differ, the shorter one's length when it is where the other begins."""
    for index, (a, b) in enumerate(zip(mine, theirs)):
        if a != b:
            return index
    return None if len(mine) == len(theirs) else min(len(mine), len(theirs))


def compare(cells: Sequence[Cell], reference: Sequence[Cell]) -> Comparison:
    """Every finished cell with the reference's of the same prompt, turn and repetition."""
    return _compare(pairs(cells, reference))


def compare_repetitions(cells: Sequence[Cell]) -> Comparison:
    """Every repetition with the first one of its prompt and turn."""
    first = {(c.key.prompt, c.key.turn): c for c in cells if c.key.repetition == 0 and c.decoded}
    later = [c for c in cells if c.key.repetition > 0 and c.decoded and (c.key.prompt, c.key.turn) in first]
    return _compare([(c, first[c.key.prompt, c.key.turn]) for c in later])


def _compare(paired: Sequence[tuple[Cell, Cell]]) -> Comparison:
    same = [(mine, theirs) for mine, theirs in paired if mine.prompt_sha256 == theirs.prompt_sha256]
    found = [_divergence(mine, theirs) for mine, theirs in same if mine.decoded.output != theirs.decoded.output]
    return Comparison(len(same), len(paired) - len(same), tuple(found))


def _divergence(mine: Cell, theirs: Cell) -> Divergence:
    as_text = mine.decoded.text is not None
    return Divergence(mine.key, None if as_text else first_difference(mine.decoded.tokens, theirs.decoded.tokens))


@dataclass(frozen=True)
class Setting:
    """What decides how a run's outputs may differ. ``dtype`` is the engine's."""

    baseline: str
    strategies: Sequence[str]
    dtype: str
    greedy: bool
    repetitions: int

    @property
    def repeats_itself(self) -> bool:
        """Whether repetitions are the control: when sampling, each has a seed of its own and must differ."""
        return self.greedy and self.repetitions > 1


@dataclass(frozen=True)
class Losslessness:
    """All of a run's comparisons. ``control`` is the baseline against itself, ``how`` says by which outputs."""

    dtype: str
    greedy: bool
    strategies: Mapping[str, Comparison]
    control: Comparison | None = None
    how: str | None = None

    @property
    def exact(self) -> bool:
        """Greedy decoding in fp32, where every output must be the baseline's."""
        return self.greedy and self.dtype == "float32"

    def broken(self) -> list[str]:
        """The strategies that differ where none may."""
        return [name for name, found in self.strategies.items() if found.divergences] if self.exact else []

    def to_json(self) -> dict[str, Any]:
        control = None if self.control is None else {"how": self.how, **self.control.to_json()}
        strategies = {name: found.to_json() for name, found in self.strategies.items()}
        return {"dtype": self.dtype, "greedy": self.greedy, "control": control, "strategies": strategies}

    def lines(self) -> list[str]:
        """A line for each strategy and one for the control, for people; what must not be comes first and is loud."""
        loud = [f"{LOUD}: {name} leaves the baseline in greedy float32, where it must not" for name in self.broken()]
        told = [self._line(name, found) for name, found in self.strategies.items() if found.compared]
        if self.control is not None and self.control.compared:
            equal = self.control.compared - len(self.control.divergences)
            told.append(f"control: the baseline equals itself in {equal} of {self.control.compared} outputs ({self.how})")
        return loud + told

    def _line(self, name: str, found: Comparison) -> str:
        figures, differing = found.to_json(), len(found.divergences)
        unlike = f"; {found.other_prompts} later turns had another history" if found.other_prompts else ""
        if not differing:
            return f"{name}: all {found.compared} outputs equal the baseline's{unlike}"
        line = f"{name}: {found.compared - differing} of {found.compared} outputs equal the baseline's"
        if figures["first_difference_median"] is not None:
            line += f"; the others first differ at token {figures['first_difference_median']:.0f} (median)"
        if figures["margins"]:
            line += f", where the target's two best logits lie {figures['margin_median']:.3g} apart (median; {self.dtype})"
        return line + unlike


def losslessness(
    cells: Sequence[Cell], control: Sequence[Cell], setting: Setting, margins: Mapping[Key, float | None] | None = None
) -> Losslessness:
    """Every strategy against the baseline, and the baseline against its ``control`` cells or its own repetitions."""
    by_name = {name: [cell for cell in cells if cell.key.strategy == name] for name in setting.strategies}
    reference = by_name.pop(setting.baseline)
    found = {name: compare(mine, reference).with_margins(margins or {}) for name, mine in by_name.items()}
    if setting.repeats_itself:
        return Losslessness(setting.dtype, setting.greedy, found, compare_repetitions(reference), "its repetitions")
    again = compare(control, reference) if control else None
    return Losslessness(setting.dtype, setting.greedy, found, again, "decoded again where a strategy differed" if again else None)
