"""Reads what the gate compares, and writes baselines. The only part of the gate that touches files."""

from __future__ import annotations

import json
from pathlib import Path

from harness.errors import UserError, kind_and_line
from harness.gate.result import Result, from_run
from harness.opened import open_run
from harness.store import finite

BASELINES = Path("results") / "baselines"
FORMAT = 1


def read(source: str) -> Result:
    """A run's folder, a baseline's JSON file, or the name of one under ``results/baselines``."""
    path = Path(source)
    try:
        if path.is_dir():
            run = open_run(path)
            found = from_run(run.cells, run.config, run.environment)
        else:
            file = path if path.is_file() else baseline_file(source)
            if not file.is_file():
                raise UserError(f"{source}: no run folder, no JSON file, and no baseline {file}")
            found = _read_baseline(file)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from error
    except Exception as error:  # damaged in one of very many ways; which one is all that can be said
        raise UserError(f"{source}: is damaged or not what the harness writes ({kind_and_line(error)})") from error
    if not any(answer.measured for answer in found.answers):
        raise UserError(f"{source}: holds no answer that was measured; nothing can be compared")
    return found


def baseline_file(name: str) -> Path:
    """``results/baselines/NAME.json``, or NAME itself when it ends in ``.json``."""
    return Path(name) if name.endswith(".json") else BASELINES / f"{name}.json"


def save(name: str, result: Result) -> Path:
    """Write a baseline, one line for each answer so that a change reads well in a diff."""
    data = finite(result.to_json())
    head = json.dumps({k: v for k, v in data.items() if k != "answers"}, indent=2, ensure_ascii=False)
    rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False, allow_nan=False) for row in data["answers"])
    file = baseline_file(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{head[:-2]},\n  "answers": [\n{rows}\n  ]\n}}\n', encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from error
    return file


def _read_baseline(file: Path) -> Result:
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise UserError(f"{file}: format {found} is not a baseline's; this version reads format {FORMAT}")
    return Result.from_json(data)
