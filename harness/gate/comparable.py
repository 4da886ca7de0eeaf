"""Refuses comparisons that make no sense, in one line that names the values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import UserError
from harness.gate.result import VARIES, About, Answer, Result

Pair = tuple[Answer, Answer]


@dataclass(frozen=True)
class Matched:
    """What both results have: for each strategy its answers in pairs, candidate's first. ``notes``: for the reader."""

    pairs: Mapping[str, Sequence[Pair]]
    notes: Sequence[str]


def match(
    candidate: Result, baseline: Result, strategies: Sequence[str] = (), common: bool = False, speed: bool = True
) -> Matched:
    """Pair the answers by prompt, turn and checksum of the prompt's tokens. Raises ``UserError``.

    ``strategies`` empty: every one of the baseline's. ``common``: prompts that one side alone has are left out instead
    of refused. ``speed``: speeds are compared too, which needs one engine, one size of batch, one load and a baseline arm.
    """
    _same_question(candidate.about, baseline.about, speed)
    arm = baseline.about.baseline_arm
    names = _strategies(candidate, baseline, list(dict.fromkeys(strategies)))
    if speed and arm is None:
        raise UserError("baseline arm: none in both, so there is no speedup; --only acceptance compares the rest")
    if arm is not None and arm not in names:
        names = [arm, *names]
        _require_measured(candidate, baseline, [arm])
    notes = [*_differences(candidate.about, baseline.about), *_repetitions(candidate, baseline)]
    extra = [s for s in _measured(candidate) if s not in names]
    if extra:
        notes.append(f"not compared: {', '.join(extra)}, in the candidate alone or not asked for")
    pairs = {}
    for name in names:
        pairs[name], left_out = _pairs(name, candidate.of(name), baseline.of(name), common)
        notes += left_out
    return Matched(pairs, notes)


def _same_question(candidate: About, baseline: About, speed: bool) -> None:
    names = ["model_sha256", "dtype", "suite", "suite_sha256", "baseline_arm"] + ["engine", "batch", "load"] * speed
    for name in names:
        _require_equal(name, getattr(candidate, name), getattr(baseline, name))
    # What a filter or a seed is set to changes nothing when the most probable token is always taken.
    greedy = candidate.greedy and baseline.greedy
    for name in sorted(candidate.sampling.keys() | baseline.sampling.keys()):
        if not greedy or name in ("temperature", "max_new_tokens"):
            _require_equal(f"sampling.{name}", candidate.sampling.get(name), baseline.sampling.get(name))


def _require_equal(name: str, candidate: Any, baseline: Any) -> None:
    if candidate != baseline:
        plural = {"engine": "engines", "batch": "batches", "load": "loads"}.get(name)
        hint = f"; --only acceptance compares {plural}" if plural else ""
        raise UserError(f"{name}: {candidate} in the candidate, {baseline} in the baseline: not comparable{hint}")


def _strategies(candidate: Result, baseline: Result, asked: list[str]) -> list[str]:
    names = asked or _measured(baseline)
    _require_measured(candidate, baseline, names)
    return names


def _require_measured(candidate: Result, baseline: Result, names: Sequence[str]) -> None:
    for name in names:
        for where, result in (("candidate", candidate), ("baseline", baseline)):
            if name not in _measured(result):
                there = ", ".join(_measured(result))
                way = "--strategy NAME compares fewer" if where == "candidate" else "choose one of these"
                raise UserError(f"strategy {name}: not in the {where}, which has {there}; {way}")


def _measured(result: Result) -> list[str]:
    return list(dict.fromkeys(answer.strategy for answer in result.answers))


def _pairs(name: str, candidate: Mapping, baseline: Mapping, common: bool) -> tuple[list[Pair], list[str]]:
    """Answers in both results to the same prompt tokens. A later turn's prompt holds the strategy's own answers."""
    keys = sorted(candidate.keys() & baseline.keys())
    fitting = [key for key in keys if _same_prompt(candidate[key], baseline[key])]
    other_history = [key for key in keys if key[1] > 0 and key not in fitting]
    other_prompt = [key for key in keys if key[1] == 0 and key not in fitting]
    lonely = sorted(candidate.keys() ^ baseline.keys()) + other_prompt
    if lonely and not common:
        prompt, turn = lonely[0]
        count = f"{len(candidate)} prompts and turns in the candidate, {len(baseline)} in the baseline"
        if lonely[0] in other_prompt:
            ours, theirs = (side[lonely[0]].prompt_sha256[:12] for side in (candidate, baseline))
            count = f"its tokens hash to {ours} in the candidate, {theirs} in the baseline"
        raise UserError(f"{name}: {prompt} turn {turn}: not the same in both ({count}); --common compares the shared")
    if not fitting:
        raise UserError(f"{name}: no prompt in both results: nothing can be compared")
    notes = [f"{name}: {len(lonely)} prompts and turns are not in both results and left out"] if lonely else []
    if other_history:
        notes.append(f"{name}: {len(other_history)} later turns follow other answers than before and are left out")
    return [(candidate[key], baseline[key]) for key in fitting], notes


def _same_prompt(candidate: Answer, baseline: Answer) -> bool:
    """A cell that failed before its prompt was rendered has no checksum: it is paired, and counted as failed."""
    ours, theirs = candidate.prompt_sha256, baseline.prompt_sha256
    return ours == theirs != VARIES or not (ours and theirs)


def _differences(candidate: About, baseline: About) -> list[str]:
    """What differs without making the comparison senseless, but may explain its outcome."""
    notes = []
    if candidate.machine != baseline.machine:
        names = [n for n in candidate.machine if candidate.machine[n] != baseline.machine.get(n)]
        changed = ", ".join(f"{n} {candidate.machine[n]} instead of {baseline.machine.get(n)}" for n in names)
        notes.append(f"another machine: {changed}; speedups are ratios within one run and still compared")
    for name in sorted(candidate.strategies.keys() & baseline.strategies.keys()):
        ours, theirs = candidate.strategies[name], baseline.strategies[name]
        for option in sorted(ours.keys() | theirs.keys()):
            if ours.get(option) != theirs.get(option):
                notes.append(f"{name}.{option}: {ours.get(option)} instead of {theirs.get(option)}")
    ours, theirs = candidate.code.get("torch"), baseline.code.get("torch")
    if ours != theirs:
        notes.append(f"torch {ours} instead of {theirs}")
    return notes + [f"{name}: another drafter than the baseline's, by its checksum" for name in _other_drafters(candidate, baseline)]


def _other_drafters(candidate: About, baseline: About) -> list[str]:
    """The strategies whose drafters are known on both sides (a server does not tell) and are not the same."""
    ours, theirs = (side.code.get("drafters") or {} for side in (candidate, baseline))
    return [name for name in sorted(ours.keys() & theirs.keys()) if ours[name] and theirs[name] and ours[name] != theirs[name]]


def _repetitions(candidate: Result, baseline: Result) -> list[str]:
    """Other numbers of them are compared all the same; that a run was stopped on its way may show here alone."""
    ours, theirs = ({len(answer.outcomes) for answer in side.answers} for side in (candidate, baseline))
    words = [" or ".join(map(str, sorted(side))) for side in (ours, theirs)]
    return [] if ours == theirs else [f"repetitions: {words[0]} in the candidate, {words[1]} in the baseline"]
