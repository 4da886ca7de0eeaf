"""Speed of the baseline, DFlash and DDTree at three node budgets inside vLLM, and a profile of their rounds, in one go.

    python -m benchmarks.vllm_speed --output results/h200/vllm suite.root=FOLDER [KEY=VALUE ...] [-- KEY=VALUE ... -- KEY=VALUE ...]
    python -m benchmarks.vllm_speed --output FOLDER --tiny suite.root=FOLDER          # on a CPU, two prompts: does it all work?

All processes are loaded once, side by side. First each strategy answers a prompt and a few of its rounds are profiled
(profile.json, profile.md, trace-*.json.gz); a strategy that fails there ends the script before anything is measured. Then a run is
measured as `python -m harness` would, with the same processes; its folder is under run/. KEY=VALUE changes the run's configuration,
which is experiment=vllm_budgets. Behind each -- stands what one of several runs has of its own: a suite to choose a budget on, then
one to show it on.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.one_load import alike, split
from benchmarks.vllm_speed import profile
from harness.decoding import request_of
from harness.errors import UserError
from harness.finish import INTERRUPTED
from harness.measuring import WARMUP_PROMPTS
from harness.run import build_engine, run
from harness.schemas import read
from harness.store import finite

USUAL = ("suite.limit=40", "suite.max_turns=1", "sampling.max_new_tokens=128", "engine.max_num_seqs=1", "model.dtype=bfloat16")
TINY = ("suite.of=[gsm8k,humaneval]", "suite.limit=1", "suite.max_turns=1", "sampling.max_new_tokens=24", "engine.kv_cache_gib=0.25")
STAGES = ("profile", "measure")
MOST_A_ROUND = 8  # tokens: the block of the shipped drafter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for everything that is written")
    parser.add_argument("--tiny", action="store_true", help="two prompts, short answers, few rounds: to try it without a GPU")
    parser.add_argument("--stage", choices=STAGES, help="one of the two alone")
    parser.add_argument("--rounds", type=int, help="rounds that are profiled of each strategy")
    common, *own = split(sys.argv[1:])
    arguments, options = parser.parse_known_args(common)
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    try:
        usual = TINY if arguments.tiny else USUAL
        usual = ("experiment=vllm_budgets", f"measure.root={output / 'run'}", *usual)
        configurations = alike([*usual, *options], own or [[]])
        plan = read(configurations[0])
        engine = build_engine(plan)
        try:
            if arguments.stage != "measure":
                rounds = arguments.rounds or (3 if arguments.tiny else 20)
                if failed := take_profiles(engine, plan, 4, rounds, output):
                    print(f"vllm_speed: nothing is measured, for {', '.join(failed)} failed; see {output / 'profile.md'}", file=sys.stderr)
                    return 1
            statuses = [0]
            for config in configurations if arguments.stage != "profile" else ():
                statuses.append(run(config, engine))
                if statuses[-1] == INTERRUPTED:  # whoever stops one wants no other
                    break
            return max(statuses)
        finally:
            engine.close()
    except UserError as error:
        print(f"vllm_speed: {error}", file=sys.stderr)
        return 2


def take_profiles(engine, plan, skip: int, rounds: int, output: Path) -> list[str]:
    """Write what each strategy's rounds spend their time on; the names of those that failed."""
    messages = [{"role": "user", "content": WARMUP_PROMPTS[0]}]
    # Nothing ends the answer early, and a round gives at most a block of tokens.
    sampling = replace(plan.sampling, temperature=0.0, max_new_tokens=MOST_A_ROUND * (skip + rounds + 1))
    request = replace(request_of(engine, messages, sampling), end_tokens=())
    found: dict[str, dict[str, Any]] = {}
    for name, told in profile.profiles(engine, list(plan.arms), request, skip, rounds, output):
        found[name] = told
        print(f"{name}: {told.get('failed') or '{:.2f} ms a round'.format(told['round_ms_without_profiler'])}", file=sys.stderr, flush=True)
        write(output, "profile", found, profile.page(found))
    return [name for name, told in found.items() if "failed" in told]


def write(output: Path, name: str, data: Any, text: str) -> None:
    (output / f"{name}.json").write_text(json.dumps(finite(data), indent=1) + "\n")
    (output / f"{name}.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
