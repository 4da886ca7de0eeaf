"""Do the answers fit behind their prompts into the model's context?"""

from __future__ import annotations

from collections.abc import Iterable

from harness.engines.base import Engine
from harness.errors import UserError
from harness.suites import Row


def check_room(engine: Engine, rows: Iterable[Row], max_new_tokens: int) -> str | None:
    """A line when first turns leave less than ``max_new_tokens`` of the context, ``None`` when none does.

    Raises ``UserError`` when no prompt could leave as much.
    """
    context = engine.context_length
    if max_new_tokens >= context:
        way_out = f"the model's context holds {context} tokens, prompt and answer together; give a smaller number"
        raise UserError(f"sampling.max_new_tokens={max_new_tokens}: {way_out}")
    rooms = [context - _length(engine, row.turns[0]) for row in rows]
    tight, none = sum(room < max_new_tokens for room in rooms), sum(room < 1 for room in rooms)
    if not tight:
        return None
    failing = f", and {none} of them leave none and will fail" if none else ""
    return (
        f"{tight} of {len(rooms)} prompts leave less than sampling.max_new_tokens={max_new_tokens} of the model's context of "
        f"{context} tokens: their answers can be cut there{failing}"
    )


def _length(engine: Engine, question: str) -> int:
    try:
        return len(engine.render([{"role": "user", "content": question}]))
    except Exception:  # its cells will fail, and say why
        return 0
