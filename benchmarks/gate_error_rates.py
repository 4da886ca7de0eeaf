"""How often the gate errs, at the noise of real runs: simulated comparisons, and the real ones between the runs given.

    python benchmarks/gate_error_rates.py RUN [RUN ...] [--prompts 32] [--repetitions 2 3 4 6 8 12 16 24 32]
        [--tolerance 0.05] [--comparisons 1000] [--output FILE]

Every RUN is a run's folder with at least two repetitions, or a baseline stored from one; several must be of the same
code on the same machine. From each strategy's log speedups come three standard deviations (between prompts, between
passes over the prompts, of a cell; harness/gate/noise.py). With them, and the cells' own residuals, two runs are made up
1,000 times with equal code and 1,000 times with a candidate that lost twice the tolerance, for each number of
repetitions, and judged as the gate judges them. Promise: of equal code at most 1 % regressed, of the losses at least
95 %. Every two real runs are compared too. The last line on stdout is one JSON object; the file holds everything.
Exit status 1 when no number of repetitions tried keeps the promise, or two real runs of equal code are called regressed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.errors import UserError  # noqa: E402
from harness.gate.compare import TOLERANCE, Options, compare  # noqa: E402
from harness.gate.noise import Noise, estimate, log_speedups, rates_by_repetitions, required_repetitions  # noqa: E402
from harness.gate.reading import read  # noqa: E402
from harness.gate.result import Result  # noqa: E402

# Quieter machines than the one measured, and a noisier one.
NOISE_TIMES = (0.125, 0.25, 0.5, 2.0)


def main() -> int:
    asked = _arguments()
    try:
        runs = [read(source) for source in asked.runs]
        pairs = [_real_pair(*pair, asked.tolerance) for pair in itertools.combinations(runs, 2)]
        found = {name: _strategy(name, runs, asked) for name in _strategies(runs)}
    except UserError as error:
        print(f"gate_error_rates: {error}", file=sys.stderr)
        return 2
    about = runs[0].about
    report = {
        "tolerance": asked.tolerance,
        "comparisons": asked.comparisons,
        "prompts": asked.prompts,
        "measured_on": {"machine": about.machine, "model": about.model, "dtype": about.dtype, "suite": about.suite},
        "runs": len(runs),
        "strategies": found,
        "real_pairs": pairs,
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(table(report))
    required = {name: of["required_repetitions"] for name, of in found.items()}
    print(json.dumps({"required_repetitions": required, "real_pairs": pairs, "output": asked.output.name}))
    return int(None in required.values() or any(pair["speed_verdict"] == "regressed" for pair in pairs))


def _strategy(name: str, runs: Sequence[Result], asked: argparse.Namespace) -> dict:
    logs = [log_speedups(run, name) for run in runs]
    noise = _together([estimate(log) for log in logs])
    print(f"{name}: log speedup varies by {noise.prompts:.3f} between prompts, {noise.passes:.3f} between passes, "
          f"{noise.cells:.3f} between cells")  # fmt: skip
    rows = rates_by_repetitions(noise, asked.prompts, asked.tolerance, asked.repetitions, asked.comparisons)
    required = required_repetitions(rows)
    for row in rows:
        print(_line(f"{row['repetitions']:3} repetitions", row))
    print(f"  required: {required} repetitions")
    planned = {}
    for times in NOISE_TIMES:
        other = replace(noise, passes=noise.passes * times, cells=noise.cells * times)
        rates = rates_by_repetitions(other, asked.prompts, asked.tolerance, asked.repetitions, asked.comparisons)
        planned[f"{times:g}"] = required_repetitions(rates)
        print(f"  required at {times:g} times that noise: {planned[f'{times:g}']} repetitions")
    return {
        "noise": noise.to_json(),
        "estimated_from": [dict(zip(("prompts", "repetitions"), log.shape)) for log in logs],
        "rates": rows,
        "required_repetitions": required,
        "required_at_other_noise": planned,
    }


def table(report: dict) -> str:
    """The rates as docs/gate.md shows them, in percent."""
    lines = [
        "| strategy | repetitions | equal code: regressed | pass | loss of twice the tolerance: regressed | pass |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in report["strategies"].items():
        for row in found["rates"]:
            same, worse = row["same_code"], row["twice_the_tolerance_lost"]
            shares = [f"{100 * rates[verdict]:.1f}" for rates in (same, worse) for verdict in ("regressed", "pass")]
            lines.append(f"| {' | '.join([name, str(row['repetitions']), *shares])} |")
    return "\n".join(lines)


def _together(noises: Sequence[Noise]) -> Noise:
    """Root mean squares over runs; the residuals of all."""
    means = {n: float(np.sqrt(np.mean([getattr(noise, n) ** 2 for noise in noises]))) for n in noises[0].to_json()}
    return Noise(**means, residuals=tuple(itertools.chain.from_iterable(noise.residuals for noise in noises)))


def _real_pair(baseline: Result, candidate: Result, tolerance: float) -> dict:
    """Both are of the same code, so any verdict of regressed is a false alarm."""
    speed = compare(candidate, baseline, Options(tolerance, only="speed"))
    acceptance = compare(candidate, baseline, Options(tolerance, only="acceptance"))
    changes = {f.strategy: f.change.to_json() for f in speed.figures if f.name == "speedup" and f.change}
    return {
        "speed_verdict": str(speed.verdict),
        "acceptance_verdict": str(acceptance.verdict),
        "speedup_changes": changes,
    }


def _strategies(runs: Sequence[Result]) -> list[str]:
    shared = set.intersection(*({a.strategy for a in run.answers} for run in runs)) - {runs[0].about.baseline_arm}
    if not shared:
        raise UserError("no strategy beside the baseline arm is in every run: there is no speedup to judge")
    return sorted(shared)


def _line(label: str, row: dict) -> str:
    same, worse = row["same_code"], row["twice_the_tolerance_lost"]
    return (
        f"  {label}: equal code {100 * same['regressed']:.1f} % regressed, {100 * same['pass']:.1f} % pass; "
        f"loss of twice the tolerance {100 * worse['regressed']:.1f} % regressed, {100 * worse['pass']:.1f} % pass"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", nargs="+")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--repetitions", type=int, nargs="+", default=[2, 3, 4, 6, 8, 12, 16, 24, 32])
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "gate" / "error_rates.json")
    asked = parser.parse_args()
    asked.repetitions = sorted(set(asked.repetitions))
    return asked


if __name__ == "__main__":
    sys.exit(main())
