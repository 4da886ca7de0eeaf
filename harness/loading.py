"""A run's folder as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from harness import lines, metrics
from harness.block import Block
from harness.opened import open_run
from harness.records import Drafting, Round
from harness.store import CONTROL, SAMPLES, Cell, Key

_KEY = list(Key._fields)
_FIGURES = (
    metrics.ttft_s, metrics.decode_s, metrics.tpot_s, metrics.decode_tokens_per_s, metrics.end_to_end_tokens_per_s,
    metrics.end_to_end_s, metrics.acceptance_committed, metrics.acceptance_verified,
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Run:
    """``cells`` and ``control`` have a row for each cell, ``rounds`` for each round of ``cells``, ``samples`` for each second,
    ``costs`` for each size of a tree and context at which rounds were timed, ``blocks`` for each strategy's turn under load.

    The columns ``prompt turn strategy repetition`` say which cell a row belongs to. A figure that a cell cannot give is
    missing (NaN). ``summary`` is ``None`` for a run that has not ended.
    """

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any] | None
    cells: pd.DataFrame
    rounds: pd.DataFrame
    control: pd.DataFrame
    samples: pd.DataFrame
    costs: pd.DataFrame
    blocks: pd.DataFrame

    def __repr__(self) -> str:
        failed = int(self.cells["failure"].notna().sum())
        strategies = ", ".join(self.cells["strategy"].unique()) or "no strategy"
        state = "ended" if self.summary else "not ended"
        counts = f"{len(self.cells)} cells ({failed} failed) of {strategies}, {len(self.rounds)} rounds"
        return f"Run({str(self.folder)!r}: {counts}, {state})"


def load(folder: str | Path) -> Run:
    """Read what a run left. Of one that did not end a half-written last line is passed over. Damage is a ``UserError``."""
    run = open_run(Path(folder))
    return Run(
        folder=run.store.folder,
        config=run.config,
        environment=run.environment,
        summary=run.summary,
        cells=cells_frame(run.cells),
        rounds=rounds_frame(run.cells),
        control=cells_frame(list(run.store.cells(CONTROL))),
        samples=pd.DataFrame(lines.read(run.store.folder / SAMPLES)),
        costs=costs_frame(run.store.costs()),
        blocks=blocks_frame(run.store.blocks()),
    )


def cells_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a cell: what is stored of it, and every figure of a request."""
    names = [f.name for f in fields(Cell) if f.name not in ("key", "decoded", "failure")]
    figures = [figure.__name__ for figure in _FIGURES]
    columns = [*_KEY, *names, "failure", "failure_message", "output_tokens", "finish_reason", "rounds", *figures]
    frame = pd.DataFrame(map(_cell_row, cells), columns=[*columns, "repeated_4grams", "loops", "tokens"])
    return frame.astype({name: float for name in (*figures, "repeated_4grams")})  # missing in every row is NaN too


def _cell_row(cell: Cell) -> dict[str, Any]:
    row = {**cell.key._asdict(), **{f.name: getattr(cell, f.name) for f in fields(Cell)}}
    decoded, failure = row.pop("decoded"), row.pop("failure")
    if failure:
        row |= {"failure": failure.kind, "failure_message": failure.message}
    if decoded:
        row |= {"output_tokens": metrics.output_tokens(decoded), "finish_reason": decoded.finish_reason, "tokens": decoded.tokens}
        row |= {"rounds": metrics.rounds(decoded), **{figure.__name__: figure(decoded) for figure in _FIGURES}}
        if decoded.tokens:
            row |= {"repeated_4grams": metrics.repeated_4grams(decoded.tokens), "loops": metrics.loops(decoded.tokens)}
    return row


def rounds_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a round: its record, ``chunk_s``, the time since the delivery before it, and ``host_s``, the host gap."""
    columns = [*_KEY, "round", *(f.name for f in fields(Round)), "chunk_s"]
    rows = (row for cell in cells if cell.decoded for row in _round_rows(cell))
    frame = pd.DataFrame(rows, columns=columns).astype({name: float for name in columns if name.endswith("_s")})
    return frame.assign(host_s=frame["chunk_s"] - frame[list(metrics.PHASES)].sum(axis=1, skipna=False))


def blocks_frame(blocks: Iterable[Block]) -> pd.DataFrame:
    """One row a block: what it delivered, and the rounds behind all its answers, missing where its server counted none."""
    counts = [f.name for f in fields(Drafting)]
    columns = [*(f.name for f in fields(Block) if f.name != "drafting"), *counts]
    rows = ({**vars(block), **(vars(block.drafting) if block.drafting else {})} for block in blocks)
    return pd.DataFrame(rows, columns=columns)


def _round_rows(cell: Cell) -> Iterator[dict[str, Any]]:
    chunks = metrics.chunks_s(cell.decoded) if cell.decoded.rounds else []
    for number, (this, chunk) in enumerate(zip(cell.decoded.rounds, chunks, strict=True)):
        yield {**cell.key._asdict(), "round": number, **asdict(this), "chunk_s": chunk}


def costs_frame(tables: list[dict[str, Any]]) -> pd.DataFrame:
    """One row for each context and number of rows of each table: seconds of a draft and of a verification."""
    columns = ["session", "strategy", "batch", "context", "rows", "draft_s", "verify_s"]
    rows = (
        (table["session"], table["strategy"], table["batch"], context, size, draft_s, verify_s)
        for table in tables
        for context, draft_s, sizes in zip(table["contexts"], table["draft_s"], table["verify_s"], strict=True)
        for size, verify_s in zip(table["rows"], sizes, strict=True)
    )
    return pd.DataFrame(rows, columns=columns)
