"""Published figures beside ours, where model and suite are the published ones, with the differences in protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from harness.report.subject import Reported, Subject
from harness.report.tables import interval, number

TABLE = Path(__file__).resolve().parents[2] / "results" / "published" / "ddtree_table1.csv"
SOURCE = "DDTree, arXiv 2604.12989, Table 1"

# The published data set's name, and how many prompts the authors took of it.
SUITES = {
    "aime24": ("AIME 2024", 30),
    "aime25": ("AIME 2025", 30),
    "alpaca": ("Alpaca", 128),
    "gsm8k": ("GSM8K", 128),
    "humaneval": ("HumanEval", 164),
    "livecodebench": ("LiveCodeBench", 128),
    "math500": ("MATH-500", 128),
    "mbpp": ("MBPP", 128),
    "mt_bench": ("MT-Bench", 80),
    "swe_bench_lite": ("SWE-bench Lite", 128),
}
NEW_TOKENS, GPU, DTYPE = 2048, "H200", "bfloat16"


def read(path: Path = TABLE) -> pd.DataFrame:
    """The published table; empty where it was not installed along."""
    columns = ["model", "dataset", "temperature", "strategy", "speedup", "acceptance_length"]
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=columns)


def model_of(run: Reported, known: list[str]) -> str | None:
    """Which of the ``known`` models a run decoded, by its name or its path's last part, in any letter case."""
    model = run.config["model"]
    names = {str(model["name"]).lower(), Path(str(model.get("path") or "")).name.lower()}
    return next((name for name in known if name.lower() in names), None)


def matches(run: Reported, table: pd.DataFrame) -> pd.DataFrame:
    """The published rows of a run's model, suite and temperature."""
    dataset, _ = SUITES.get(run.config["suite"]["name"], (None, 0))
    model = model_of(run, list(table["model"].unique()))
    same = (table["model"] == model) & (table["dataset"] == dataset)
    return table[same & (table["temperature"] == run.config["sampling"]["temperature"])]


def beside(subject: Subject, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each strategy that has a published figure. Acceptance is the mean over answers, as theirs is."""
    table = read() if table is None else table
    rows = []
    for run in subject.runs:
        for theirs in matches(run, table).itertuples():
            for name in [n for n in run.figures if theirs.strategy in (n, run.plugin(n))]:
                ours = run.figures[name]
                rows.append({
                    "strategy": subject.name(run, name),
                    "model, suite": f"{theirs.model}, {theirs.dataset}",
                    "speedup, published": f"{theirs.speedup:.2f}×",
                    "speedup, ours [95 %]": interval(ours["speedup"]),
                    "acceptance, published": f"{theirs.acceptance_length:.2f}",
                    "acceptance, ours": number(ours["acceptance_length_mean_over_requests"]),
                })  # fmt: skip
    return pd.DataFrame(rows)


def differences(subject: Subject, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """Where our protocol is not the published one, for the runs that have published figures."""
    table = read() if table is None else table
    rows = []
    for run in subject.runs:
        if len(matches(run, table)):
            where = {"run": run.letter} if subject.several else {}
            rows += [{**where, "point": p, "published": theirs, "here": ours} for p, theirs, ours in _differences(run)]
    return pd.DataFrame(rows)


def _differences(run: Reported) -> Iterator[tuple[str, str, str]]:
    gpus = [gpu.get("name", "GPU") for gpu in run.environment.get("gpus") or []]
    machine = ", ".join(gpus) or run.environment["cpu"].get("model", "CPU")
    if not any(GPU in gpu for gpu in gpus):
        yield "machine", f"one NVIDIA {GPU}", machine
    dtype = str(run.environment["engine"].get("dtype", "unknown")).removeprefix("torch.")
    if dtype != DTYPE:
        yield "number format", DTYPE, dtype
    limit = run.config["sampling"]["max_new_tokens"]
    if limit != NEW_TOKENS:
        yield "longest answer", f"{NEW_TOKENS} tokens", f"{limit} tokens"
    _, theirs = SUITES[run.config["suite"]["name"]]
    prompts = len({cell.key.prompt for cell in run.cells})
    if prompts != theirs:
        yield "prompts", f"{theirs}", f"{prompts}"
    yield "speedup", "ratio of mean times per output token", "geometric mean over prompts of the ratio of decode speeds"
    yield "clock", "speculative runs start after their first draft", "starts at the first token; every draft is inside"
    yield "node budget", "the best of several, picked on the reported prompts", f"as configured: {run.budgets or 'none'}"
    yield "thinking", "off", "as the model's chat template has it by default"


def no_match(subject: Subject) -> str:
    """One line for a report without published figures."""
    if not TABLE.is_file():
        return f"No published figure was looked up: results/published/{TABLE.name} is not in the package."
    pairs = [(run.config["model"]["name"], run.config["suite"]["name"]) for run in subject.runs]
    asked = "; ".join(f"{model} with suite {suite}" for model, suite in dict.fromkeys(pairs))
    return f"No published figure matches: {SOURCE}, the table that is kept here, has none for {asked}."
