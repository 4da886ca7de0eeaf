"""Where and with what a run was made, and how to make it again."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

import pandas as pd

from harness.report.subject import Reported, Subject

PACKAGES = (
    "torch", "vllm", "sglang", "triton", "transformers", "tokenizers", "safetensors", "gguf", "numpy", "hydra-core",
)  # fmt: skip


def shared(subject: Subject) -> pd.DataFrame:
    """A row for each fact that holds for every run."""
    facts = [_facts(run) for run in subject.runs]
    rows = [{"fact": name, "value": facts[0][name]} for name in _names(facts) if _agree(facts, name)]
    return pd.DataFrame(rows)


def differing(subject: Subject) -> pd.DataFrame:
    """A row for each run, a column for each fact in which the runs differ; empty for a single run."""
    facts = [_facts(run) for run in subject.runs]
    names = [name for name in _names(facts) if not _agree(facts, name)]
    rows = [{"run": run.letter, **{n: found.get(n, "–") for n in names}} for run, found in zip(subject.runs, facts)]
    return pd.DataFrame(rows if names else [])


def _names(facts: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for found in facts for name in found))


def _agree(facts: list[dict[str, str]], name: str) -> bool:
    return len({found.get(name) for found in facts}) == 1


def _facts(run: Reported) -> dict[str, str]:
    found, cpu = run.environment, run.environment.get("cpu") or {}
    git, torch = found.get("git") or {}, found.get("torch") or {}
    engine, suite = found.get("engine") or {}, found.get("suite") or {}
    cores = f"{cpu.get('usable_cores')} usable of {cpu.get('logical_cores')}, {cpu.get('physical_cores')} physical"
    facts = {
        "started": found.get("at"),
        "harness": _code(git),
        "CPU": cpu.get("model"),
        "cores": cores,
        "clock governor": cpu.get("governor") or "not told (a virtual machine's is its host's affair)",
        "load at the start (1, 5, 15 min)": ", ".join(f"{load:.2f}" for load in cpu.get("load_average") or []),
        "memory": f"{found['memory_bytes'] / 2**30:.1f} GiB" if found.get("memory_bytes") else None,
        "GPU": "; ".join(_gpu(gpu) for gpu in found.get("gpus") or []) or "none",
        "system": found.get("platform"),
        "Python": found.get("python"),
        "PyTorch": f"{torch.get('version')}, CUDA {torch.get('cuda') or 'none'}" if torch else "not loaded",
        **{f"engine: {_words(name)}": text(value) for name, value in engine.items()},
        **{f"suite: {_words(name)}": text(value) for name, value in suite.items()},
        "seeds": text(found.get("seeds") or {}),
        "packages": ", ".join(f"{n} {found['packages'][n]}" for n in PACKAGES if n in found.get("packages") or {}),
        "environment variables": ", ".join(f"{n}={no_folder(v)}" for n, v in (found.get("variables") or {}).items()),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _code(git: dict[str, Any]) -> str:
    if not git:
        return "no git repository"
    return f"commit {git['commit'][:12]}{', with changes not committed' if git['dirty'] else ''}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _gpu(gpu: dict[str, Any]) -> str:
    rest = {name: value for name, value in gpu.items() if name not in ("name", "uuid", "index") and value is not None}
    return f"{gpu.get('name', 'GPU')} ({text(rest)})" if rest else str(gpu.get("name", "GPU"))


def no_folder(value: str) -> str:
    """A variable's value, without the folder of this machine that it may name."""
    return "(a folder)" if os.path.isabs(value) else value


def text(value: Any) -> str:
    """Nested settings in one line for people."""
    if isinstance(value, dict):
        return ", ".join(f"{_words(str(name))} {_short(text(v))}" for name, v in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def _short(value: str) -> str:
    """The beginning of a checksum: the whole stands in ``environment.json``."""
    return f"{value[:12]}…" if re.fullmatch("[0-9a-f]{64}", value) else value


def commands(subject: Subject) -> str:
    """What to type to repeat every run of the report: the code's commit, its packages, the command; a sweep's as one."""
    lines: list[str] = []
    for sweep in subject.sweeps:
        lines += _repeat(sweep.about.get("git") or {}, sweep.about.get("command"), "# the sweep" if subject.several else "")
    for run in subject.runs:
        if not any(run.folder.is_relative_to(sweep.folder) for sweep in subject.sweeps):
            command = run.environment.get("command")
            lines += _repeat(run.environment.get("git") or {}, command, f"# run {run.letter}" if subject.several else "")
    return "\n".join(lines).strip()


def _repeat(git: dict[str, Any], command: str | None, heading: str) -> list[str]:
    lines = [heading] if heading else []
    if git:
        lines.append(f"git checkout {git['commit']}")
        if git["dirty"]:
            lines.append("# not quite what was measured: the tree had changes that were not committed")
    return [*lines, "python -m pip install -c constraints.txt -e .", command or "# the command was not recorded", ""]


def report_command(subject: Subject) -> str:
    """What makes this report from the folders that it was made from."""
    where = ["--output", "FOLDER"] if len(subject.given) > 1 else []
    return shlex.join(["python", "-m", "harness.report", *(folder.name for folder in subject.given), *where])
