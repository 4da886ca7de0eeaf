"""Finds suite rows among training prompts, so that a drafter is never evaluated on what it was trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.suites.wording import bare

if TYPE_CHECKING:
    from harness.suites import Suite

# Shared by chance even in unrelated questions below this length; a sentence that was copied is longer.
PASSAGE_WORDS = 12


@dataclass(frozen=True)
class Overlap:
    """One training prompt that meets one suite row. ``prompt`` is its index among the prompts that were given.

    ``kind`` is ``equal`` (the same question but for case, punctuation and the papers' wording) or ``passage`` (12 words
    in a row, given in ``words``, stand in both).
    """

    kind: str
    prompt: int
    suite: str
    row: str
    words: str


def normalised(text: str) -> str:
    """Lower case, words and numbers alone, one space between them."""
    return " ".join(re.findall(r"\w+", text.lower()))


def passages_of(words: str) -> list[str]:
    """Every run of ``PASSAGE_WORDS`` words in a normalised text."""
    each = words.split()
    return [" ".join(each[i : i + PASSAGE_WORDS]) for i in range(len(each) - PASSAGE_WORDS + 1)]


def overlap(prompts: Iterable[str], suites: Iterable[Suite]) -> list[Overlap]:
    """Every pair of a prompt and a row of ``suites`` that meet, once; ``equal`` where both kinds hold."""
    equal: dict[str, list[tuple[str, str]]] = {}
    passages: dict[str, list[tuple[str, str]]] = {}
    for suite in suites:
        for row in suite.rows:
            for turn in row.turns:
                words = normalised(bare(turn))
                equal.setdefault(words, []).append((suite.name, row.id))
                for passage in dict.fromkeys(passages_of(words)):
                    passages.setdefault(passage, []).append((suite.name, row.id))
    found = []
    for index, prompt in enumerate(prompts):
        words = normalised(bare(prompt))
        same = equal.get(words, ()) if words else ()
        met = {place: Overlap("equal", index, *place, words) for place in same}
        for passage in passages_of(words):
            for place in passages.get(passage, ()):
                met.setdefault(place, Overlap("passage", index, *place, passage))
        found += met.values()
    return found


def without_overlap(prompts: Sequence[str], suites: Iterable[Suite]) -> list[str]:
    """``prompts`` less those that meet a suite row in any way.

    For the questions that a target writes itself: it may have seen a benchmark and recite it.
    """
    met = {each.prompt for each in overlap(prompts, suites)}
    return [prompt for index, prompt in enumerate(prompts) if index not in met]
