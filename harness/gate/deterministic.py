"""Figures that need no interval: failures, and what greedy decoding in fp32 must repeat exactly. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.gate.comparable import Pair
from harness.gate.result import Answer, Outcome
from harness.gate.verdict import Figure, Verdict, judge_equal


def failures(name: str, pairs: Sequence[Pair]) -> Figure:
    """Failed cells / cells [-]: must not increase."""
    ours, theirs = (_failed_share(side) for side in zip(*pairs))
    verdict = Verdict.REGRESSED if ours > theirs else Verdict.PASS
    return Figure(name, "failed cells", ours, theirs, verdict)


def figures(name: str, pairs: Sequence[Pair], arm: Sequence[Pair], counts: bool = True) -> list[Figure]:
    """Tokens, rounds and accepted tokens of every answer must be the baseline's; the tokens the baseline arm's too.

    ``arm`` holds the candidate's baseline arm, and is empty for that arm itself. ``counts`` False: rounds and accepted tokens
    may move.
    """
    found = [_equal(name, "tokens", pairs, lambda o: (o.tokens_sha256, o.output_tokens), lambda o: o.output_tokens)]
    counted = [pair for pair in pairs if all(map(_rounds_counted, pair))]
    for figure, count in (("rounds", lambda o: o.rounds), ("accepted", lambda o: o.accepted)) if counts else ():
        if pairs and not counted:
            detail = "nobody counted the rounds of single answers, as under load or at a server that does not tell"
            found.append(Figure(name, figure, None, None, Verdict.INCONCLUSIVE, detail=detail))
        else:
            found.append(_equal(name, figure, counted, count, count))
    if arm:
        shares = [identical(side, other) for side, other in zip(zip(*pairs), zip(*arm))]
        ours, theirs = ([hit for turns in share.values() for turn in turns for hit in turn] for share in shares)
        verdict = judge_equal(len(ours) - sum(ours), len(ours))
        values = [sum(hits) / len(hits) if hits else None for hits in (ours, theirs)]
        found.append(Figure(name, "identical to the baseline arm", *values, verdict))
    return found


def identical(answers: Iterable[Answer], arm: Iterable[Answer]) -> dict[str, list[list[bool]]]:
    """Whether an answer is the baseline arm's of the same repetition: by prompt, turn and repetition."""
    others = {(a.prompt, a.turn): a for a in arm}
    found: dict[str, list[list[bool]]] = {}
    for answer in answers:
        other = others.get((answer.prompt, answer.turn))
        pairs = zip(answer.outcomes, other.outcomes) if other else ()
        hits = [a.tokens_sha256 == b.tokens_sha256 for a, b in pairs if a and b]
        if hits:
            found.setdefault(answer.prompt, []).append(hits)
    return found


def _equal(
    name: str, figure: str, pairs: Sequence[Pair], key: Callable[[Outcome], Any], count: Callable[[Outcome], int]
) -> Figure:
    """Every repetition of both results must agree. The values are means over answers of the figure's count."""
    both = [(c, b) for c, b in pairs if c.measured and b.measured]
    unequal = [(c, b) for c, b in both if len({key(o) for o in [*c.measured, *b.measured]}) > 1]
    ours, theirs = (_mean_count([pair[i] for pair in both], count) for i in (0, 1))
    detail = f"equal in all {len(both)} answers" if both else "no answer in both runs"
    if unequal:
        first = unequal[0][0]
        detail = f"unequal in {len(unequal)} of {len(both)} answers, first {first.prompt} turn {first.turn}"
        if all(len({key(o) for o in side.measured}) == 1 for pair in unequal for side in pair):
            detail += "; if the change is meant, save a new baseline"
        else:
            detail += "; repetitions of one run differ among themselves"
    return Figure(name, figure, ours, theirs, judge_equal(len(unequal), len(both)), detail=detail)


def _rounds_counted(answer: Answer) -> bool:
    """An answer of one token has none; more tokens come in rounds, seen or not."""
    return all(outcome.rounds or outcome.output_tokens < 2 for outcome in answer.measured)


def _mean_count(answers: Sequence[Answer], count: Callable[[Outcome], int]) -> float | None:
    values = [sum(map(count, a.measured)) / len(a.measured) for a in answers]
    return sum(values) / len(values) if values else None


def _failed_share(answers: Sequence[Answer]) -> float:
    failed, measured = sum(a.failed for a in answers), sum(len(a.measured) for a in answers)
    return failed / max(1, failed + measured)
