"""Do the strategies still say what the baseline says, and how much of what they say goes round in circles?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.metrics import LOOPS_FROM
from harness.report.subject import Reported, Subject
from harness.report.tables import NONE, number, share

SHOWN = 20


def comparison(subject: Subject) -> pd.DataFrame:
    """Each strategy against the baseline of the same run, and the control: the baseline against itself."""
    rows = []
    for run in subject.runs:
        for name, found in (run.lossless or {}).get("strategies", {}).items():
            rows.append(_comparison_row(subject.name(run, name), found))
        control = (run.lossless or {}).get("control")
        if control:
            rows.append(_comparison_row(subject.name(run, f"{run.baseline} (control)"), control))
    return pd.DataFrame(rows)


def _comparison_row(name: str, found: dict[str, Any]) -> dict[str, str]:
    differ = len(found["divergences"])
    return {
        "strategy": name,
        "answers compared": f"{found['compared']}",
        "identical": share(found["identical"]),
        "differ": f"{differ}",
        "first difference at token (median)": number(found["first_difference_median"], 0),
        "best minus second logit there (median)": number(found["margin_median"], 3),
        "largest": number(found["margin_max"], 3),
        "later turns with another history": f"{found['other_prompts']}",
    }


def divergences(subject: Subject, limit: int = SHOWN) -> pd.DataFrame:
    """The first ``limit`` answers that part from the baseline's, the widest margin first: those need an explanation."""
    rows = []
    for run in subject.runs:
        for name, found in (run.lossless or {}).get("strategies", {}).items():
            rows += [(d["margin"], _divergence_row(subject.name(run, name), d)) for d in found["divergences"]]
    rows.sort(key=lambda row: -1 if row[0] is None else row[0], reverse=True)
    return pd.DataFrame([row for _, row in rows[:limit]])


def _divergence_row(name: str, found: dict[str, Any]) -> dict[str, str]:
    return {
        "strategy": name,
        "prompt": found["prompt"],
        "turn": f"{found['turn'] + 1}",
        "repetition": f"{found['repetition'] + 1}",
        "first differing token": number(found["index"], 0),
        "best minus second logit": number(found["margin"], 3),
    }


def verdicts(subject: Subject) -> list[str]:
    """A sentence for each run: whether identical answers can be asked for, and whether they are there; why not, once."""
    said = [(run, *_verdict(run)) for run in subject.runs]
    sentences = [(run, f"{verdict}{_control(run)}") for run, verdict, _ in said]
    why = list(dict.fromkeys(why for _, _, why in said if why))
    if not subject.several:
        return [" ".join([sentences[0][1], *why])]
    return [*(f"Run {run.letter}: {sentence}" for run, sentence in sentences), *why]


def _control(run: Reported) -> str:
    control = (run.lossless or {}).get("control")
    if not control or not control["compared"]:
        return ""
    equal = control["compared"] - len(control["divergences"])
    return f" Control: the baseline equals itself in {equal} of {control['compared']} answers ({control['how']})."


def _verdict(run: Reported) -> tuple[str, str]:
    """What was found, and what there is to know about it."""
    if run.lossless is None:
        return "No baseline was measured, so no answer can be compared with one.", ""
    if not run.greedy:
        return "The run samples, so equal answers cannot be asked for.", (
            "Whether the distribution of a run that samples is the target's is a matter for a test over many samples of one "
            "prompt (tests/test_distribution.py), not of a run."
        )
    total = sum(len(found["divergences"]) for found in run.lossless["strategies"].values())
    compared = sum(found["compared"] for found in run.lossless["strategies"].values())
    differing = {name: len(found["divergences"]) for name, found in run.lossless["strategies"].items()}
    parted = ", ".join(f"{name} {count}" for name, count in differing.items() if count)
    if not compared:
        return "No answer could be compared with the baseline's.", ""
    if not parted:
        return f"All {compared} answers that were compared equal the baseline's, token for token.", ""
    if run.lossless["dtype"] == "float32":
        return f"NOT LOSSLESS: answers differ in greedy float32, where none may ({parted}). That is a bug.", ""
    verb = "differs" if total == 1 else "differ"
    return f"{total} of {compared} answers compared {verb} from the baseline's ({parted}).", (
        f"In {run.lossless['dtype']} a pass over several tokens rounds differently from a pass over one, so a near-tie "
        "between the two best tokens can fall the other way: a small margin at the first difference says so. "
        "The same run with model.dtype=float32 must show none."
    )


def looping(subject: Subject) -> pd.DataFrame:
    """Share of answers that loop, and the acceptance length of those and of the others."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items():
            found = figures["looping"]
            rows.append({
                "strategy": subject.name(run, name),
                "repeated 4-grams (mean)": share(figures["repeated_4grams"]),
                "answers that loop": share(found["share"]),
                "acceptance, looping": number(found["acceptance_length_looping"]),
                "acceptance, others": number(found["acceptance_length_others"]),
            })  # fmt: skip
    return pd.DataFrame(rows)


LOOPING_CAPTION = (
    f"An answer loops when at least {LOOPS_FROM:.0%} of its sequences of four tokens occurred in it before. Loops are easy "
    f"to draft, so a high share flatters every strategy: compare the last two columns. {NONE}: no such answer."
)
