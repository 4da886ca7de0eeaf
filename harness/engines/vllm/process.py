"""An engine's process: loads vLLM for one strategy, then answers requests, a line of JSON each.

Standard input brings ``{"arguments": …}`` first and ``{"decode": …}`` or ``{"margin": [ids]}`` then; answers go to what was
standard output. Whatever vLLM prints goes to standard error. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import IO, Any

from harness.errors import UserError
from harness.records import Request, Sampling


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines = iter(sys.stdin.readline, "")
    driver = _start(json.loads(next(lines))["arguments"], answers)
    if driver is None:
        return 1
    for line in lines:
        _say(answers, _answer(driver, json.loads(line)))
    return 0


def _start(arguments: dict[str, Any], answers: IO[str]):
    """The engine, its settings told; ``None`` when it refused, and why told."""
    from harness.engines.vllm.driver import Driver
    from harness.engines.vllm.live import live_settings

    try:
        driver = Driver(arguments)
    except UserError as refusal:
        _say(answers, {"refused": str(refusal)})
        return None
    _say(answers, {"settings": live_settings(driver.engine)})
    return driver


def _answer(driver, asked: dict[str, Any]) -> dict[str, Any]:
    """A failure of one request is an answer too; what breaks the engine ends the process by itself."""
    try:
        if "margin" in asked:
            return {"margin": driver.margin(asked["margin"])}
        return {"decoded": driver.decode(read_request(asked["decode"])).to_json()}
    except (UserError, ValueError, RuntimeError) as error:
        return {"failed": [type(error).__name__, str(error)]}


def read_request(data: dict[str, Any]) -> Request:
    return Request(tuple(data["prompt_ids"]), tuple(data["end_tokens"]), Sampling(**data["sampling"]), data["round_times"])


def write_request(request: Request) -> dict[str, Any]:
    return asdict(request)


def _say(answers: IO[str], answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
