"""Runs in a process of its own: one vLLM engine, several runs of requests, everything that came of them as JSON.

Standard input: ``{"folder", "strategy", "settings", "replayed", "extra", "runs": [{"name", "batch", "control", "requests": [...]}]}``, where
a request holds ``prompt``, ``end``, ``sampling``, perhaps ``abort_after`` (tokens) and ``params`` (of vLLM's own). The answer
goes to the file that is named on the command line.
"""

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    asked = json.loads(sys.stdin.read())
    from harness.engines.vllm.arguments import Settings, engine_arguments, environment

    settings = Settings(**asked["settings"])
    os.environ.update(environment(settings))
    arguments = engine_arguments(Path(asked["folder"]), settings, asked["strategy"]) | asked["extra"]
    from replays import Again

    from harness.engines.vllm.driver import Driver
    from harness.engines.vllm.live import live_settings

    if asked["replayed"]:
        from strategies.ddtree.vllm_plugin import replaying

        replaying.recorder = lambda device, captures: Again
        arguments["additional_config"]["ddtree"]["full_graphs"] = True
    driver = Driver(arguments)
    preempted = count_preemptions(driver.scheduler)
    result = {"settings": live_settings(driver.engine), "arguments": {k: v for k, v in arguments.items() if k != "additional_config"}}
    for run in asked["runs"]:
        free = driver.scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        before, Again.replays = free(), 0
        with control(run.get("control")):
            answers = go(driver, run)
        driver.engine.step()  # lets finished requests go
        result[run["name"]] = {"answers": answers, "preempted": sorted(preempted), "free_blocks": [before, free()], "replays": Again.replays}
        preempted.clear()
    worker = driver.engine.model_executor.driver_worker.worker
    if hasattr(worker, "chained_requests"):
        result["chained"] = worker.chained_requests()
        runner = worker.model_runner
        result["left"] = [len(known) for known in (runner._grown, runner._uniforms, runner.shapes, runner.chains)]
    Path(sys.argv[1]).write_text(json.dumps(result))


def go(driver, run) -> dict:
    waiting, answers = list(enumerate(run["requests"])), {}
    aborts = {str(number): asked["abort_after"] for number, asked in waiting if asked.get("abort_after")}
    while len(answers) < len(run["requests"]):
        while waiting and len(driver.running) < run["batch"]:
            number, asked = waiting.pop(0)
            add(driver, str(number), asked)
        for name, decoded in driver.step().items():
            answers[name] = asdict(decoded)
        for name, tokens in aborts.items():
            if name in driver.running and len(driver.running[name].tokens) >= tokens:
                answers[name] = {"tokens": driver.running[name].tokens, "aborted": True}
                driver.abort(name)
    return answers


def add(driver, name, asked) -> None:
    from harness.engines.vllm import driver as module
    from harness.records import Request, Sampling

    request = Request(tuple(asked["prompt"]), tuple(asked["end"]), Sampling(**asked["sampling"]), False)
    usual = module.sampling_params

    def special(request, limit):
        params = usual(request, limit)
        for key, value in asked.get("params", {}).items():
            setattr(params, key, value)
        return params

    module.sampling_params = special
    driver.add(name, request)
    module.sampling_params = usual


@contextmanager
def control(name):
    """Switches one part of the plugin off, to see that the comparison notices."""
    if name is None:
        yield
        return
    import torch

    from strategies.ddtree.vllm_plugin import cpu_attention, plan, runner

    def everything_before(step):
        return torch.ones(len(step.requests), step.widest, step.widest, dtype=torch.bool).tril()

    owner, attribute, off = {
        "commit": (cpu_attention.CPUCaches, "keep", lambda *_: None),
        "positions": (runner.TreeRunner, "_set_positions", lambda *_: None),
        "mask": (plan.Step, "mask", property(everything_before)),
    }[name]
    usual = getattr(owner, attribute)
    setattr(owner, attribute, off)
    try:
        yield
    finally:
        setattr(owner, attribute, usual)


def count_preemptions(scheduler) -> set:
    preempted, usual = set(), scheduler._preempt_request

    def counted(request, *args, **kwargs):
        preempted.add(request.request_id.rpartition("-")[0])
        return usual(request, *args, **kwargs)

    scheduler._preempt_request = counted
    return preempted


if __name__ == "__main__":
    main()
