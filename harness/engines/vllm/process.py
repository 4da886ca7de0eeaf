"""An engine's process: loads vLLM for one strategy, then answers requests, a line of JSON each.

Standard input brings ``{"strategy": …, "arguments": …}`` first and ``{"decode": …}``, ``{"margin": [ids]}`` or ``{"profile": …}``
then; answers go to what was standard output. Whatever vLLM prints goes to standard error. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict
from typing import IO, Any

from harness import memory
from harness.errors import UserError
from harness.records import Request, Sampling


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines = iter(sys.stdin.readline, "")
    driver = _start(json.loads(next(lines)), answers)
    if driver is None:
        return 1
    for line in lines:
        _say(answers, _answer(driver, json.loads(line)))
    return 0


def _start(asked: dict[str, Any], answers: IO[str]):
    """The engine, its settings and the probe told; ``None`` when it cannot run or refused, and why told."""
    from harness.engines.vllm.probe import rows

    probe = rows(asked["strategy"])
    if prevented := [row for row in probe if row.prevents]:
        row = prevented[0]
        why = f"{row.what} is {row.state} ({row.detail})"
        refusal = f"strategy={asked['strategy']['name']} cannot run on vLLM: {why}; see python -m harness.probe"
        _say(answers, {"refused": refusal})
        return None
    from harness.engines.vllm.driver import Driver
    from harness.engines.vllm.live import live_settings

    try:
        driver = Driver(asked["arguments"])
    except UserError as refusal:
        _say(answers, {"refused": str(refusal)})
        return None
    _say(answers, {"settings": live_settings(driver.engine), "probe": [row.to_json() for row in probe]})
    return driver


def _answer(driver, asked: dict[str, Any]) -> dict[str, Any]:
    """A failure of one request is an answer too; what breaks the engine ends the process by itself."""
    try:
        if "margin" in asked:
            return {"margin": driver.margin(asked["margin"])}
        if "profile" in asked:
            from harness.engines.vllm.profiling import profiled

            options = dict(asked["profile"])
            return {"profiled": profiled(driver, read_request(options.pop("request")), **options)}
        memory.reset_peaks()
        decoded = driver.decode(read_request(asked["decode"])).to_json()
        return {"decoded": decoded, "peaks": [memory.host_peak_bytes(), memory.device_peak_bytes()]}
    except (UserError, ValueError, RuntimeError) as error:
        traceback.print_exc()  # into the log
        return {"failed": [type(error).__name__, str(error)]}


def read_request(data: dict[str, Any]) -> Request:
    return Request(tuple(data["prompt_ids"]), tuple(data["end_tokens"]), Sampling(**data["sampling"]), data["round_times"])


def write_request(request: Request) -> dict[str, Any]:
    return asdict(request)


def _say(answers: IO[str], answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
