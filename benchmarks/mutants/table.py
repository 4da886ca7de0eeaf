"""What the trials found, as a page of Markdown."""

from __future__ import annotations

from typing import Any

HEAD = """\
# Mutants

A bug that is planted on purpose shows whether the tests would have found it. `python -m benchmarks.mutants` plants each of these
in a temporary copy of the tree, alone, and runs the tests that must notice; the same tests pass on the copy without it. This page
and `results/mutants/mutants.json` are what it wrote.
"""

GATE = """
## What the gate catches

Some bugs leave every output as it must be: the target still decides, and only what is drafted gets worse. The same run,
`python -m harness {options}`, was made with and without each of them, and
`python -m harness.gate MUTANT --against SOUND --only acceptance` judged. Without a bug it passes. Acceptance is in tokens a round;
strategies that a bug does not touch are left out. Equal lengths with another number of rounds in single answers occur too.

| mutant | acceptance, sound → mutant | outputs equal | gate | figures that regressed |
| --- | --- | --- | --- | --- |
"""


def page(report: dict[str, Any]) -> str:
    """``report`` is what the script stores."""
    mutants = report["mutants"]
    lines = [HEAD, f"{len(mutants)} mutants, {sum(m['caught'] is not None for m in mutants)} caught by a test.\n"]
    lines += ["| mutant | the bug | file | caught by | at the line |", "| --- | --- | --- | --- | --- |"]
    lines += map(_row, mutants)
    gated = [m for m in mutants if m["gate"]]
    if gated:
        lines.append(GATE.format(options=" ".join(report["gate"]["options"])).rstrip())
        lines += [_gate_row(m, report["gate"]["sound"]) for m in gated]
    return "\n".join(lines) + "\n"


def _row(mutant: dict[str, Any]) -> str:
    caught = mutant["caught"]
    by = f"`{caught['test']}`" if caught else "**nothing**"
    at = f"{caught['line']}: `{caught['assertion'].replace('|', chr(92) + '|')}`" if caught else ""
    return f"| {mutant['name']} | {mutant['what']} | `{mutant['file']}` | {by.replace('|', chr(92) + '|')} | {at} |"


def _gate_row(mutant: dict[str, Any], sound: dict[str, Any]) -> str:
    found = mutant["gate"]
    touched = list(dict.fromkeys(figure["strategy"] for figure in found["regressed"]))
    change = ", ".join(f"{n} {_length(sound[n])} → {_length(found['strategies'][n])}" for n in touched)
    equal = "all" if all(found["strategies"][n]["identical"] == 1 for n in touched) else "not all"
    failed = sum(found["strategies"][n]["failed"] for n in touched)
    figures = ", ".join(f"{f['strategy']} {f['name']}" for f in found["regressed"])
    row = mutant["name"], change, equal + (f"; {failed} cells failed" if failed else ""), f"{found['verdict']}, exit {found['exit_status']}"
    return f"| {' | '.join(row)} | {figures} |"


def _length(figures: dict[str, Any]) -> str:
    length = figures["acceptance_length"]
    return "–" if length is None else f"{length:.2f}"
