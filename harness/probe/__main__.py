"""``python -m harness.probe``: can the asked-for strategy run on the asked-for engine here? Exit status 0 only if it can."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from harness.arguments import Parser
from harness.errors import UserError
from harness.probe.ask import ask
from harness.probe.rows import FOUND, Row

CAN, CANNOT, WRONG_USAGE = 0, 1, 2


def main() -> int:
    parser = Parser(prog="python -m harness.probe", description=__doc__)
    parser.add_argument("choices", nargs="*", metavar="engine=NAME strategy=NAME", help="default: engine=vllm strategy=ddtree")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    try:
        given = parser.parse_args()
        engine, strategy = _choices(given.choices)
        rows = ask(engine, strategy)
    except UserError as error:
        print(f"harness.probe: {error}", file=sys.stderr)
        return WRONG_USAGE
    prevented = [row for row in rows if row.prevents]
    if given.json:
        print(json.dumps({"engine": engine, "strategy": strategy, "can_run": not prevented, "rows": [row.to_json() for row in rows]}))
    else:
        _print(engine, strategy, rows, prevented)
    return CANNOT if prevented else CAN


def _choices(words: list[str]) -> tuple[str, str]:
    chosen = {"engine": "vllm", "strategy": "ddtree"}
    for word in words:
        key, _, value = word.partition("=")
        if key not in chosen or not value:
            raise UserError(f"{word}: is not engine=NAME or strategy=NAME")
        chosen[key] = value
    return chosen["engine"], chosen["strategy"]


def _print(engine: str, strategy: str, rows: list[Row], prevented: list[Row]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    table = Table("what", "state", "detail", "what follows", title=f"{strategy} on {engine}")
    for row in rows:
        colour = "green" if row.state == FOUND else "red" if row.needed else "yellow"
        table.add_row(row.what, f"[{colour}]{row.state}[/]", row.detail, row.follows)
    console.print(table)
    if prevented:
        why = f"{prevented[0].what} is {prevented[0].state} ({prevented[0].detail})"
        console.print(f"{strategy} cannot run on {engine}: {why}", markup=False)
    else:
        console.print(f"{strategy} can run on {engine}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
