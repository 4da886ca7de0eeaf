"""vLLM's own server with the plugin, started by ``harness.serve`` and measured over HTTP: the torch engine's tokens and rounds.

Needs vLLM in the environment (CPU or GPU) and takes minutes.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from vllm_runs import ROOT, needs_vllm

pytestmark = [*needs_vllm, pytest.mark.timeout(900)]
SETTING = ["model.dtype=float32", "suite.limit=6", "suite.max_turns=1", "sampling.max_new_tokens=20"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of DDTree's server."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "harness.serve", "strategy=ddtree", "model.dtype=float32", "engine.max_model_len=1024", f"port={port}"]
    with open(log, "w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 600
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(f"{url}/v1/models", timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


def run(folder: Path, *options: str):
    import harness

    command = [sys.executable, "-m", "harness", "strategy=ddtree", *SETTING, f"measure.root={folder}", *options]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return harness.load(max(folder.iterdir()))


def test_the_served_strategy_is_the_torch_engines_token_for_token_and_round_for_round(server, tmp_path):
    served = run(tmp_path / "served", "engine=openai", f"engine.base_url={server}", "engine.served_model=smollm2-135m").cells
    torch = run(tmp_path / "torch", "engine=torch").cells
    both = served.merge(torch[torch.strategy == "ddtree"], on=["prompt", "turn", "strategy", "repetition"], suffixes=("", "_torch"))
    assert len(both) == len(served) == 6 and served.failure.isna().all()
    assert (both.prompt_sha256 == both.prompt_sha256_torch).all()
    assert both.tokens.tolist() == both.tokens_torch.tolist()
    assert both.rounds.tolist() == both.rounds_torch.tolist() and both.acceptance_verified.tolist() == both.acceptance_verified_torch.tolist()
    assert both.acceptance_verified.mean() > 1.5


def test_a_load_gives_the_same_answers(server, tmp_path):
    alone = run(tmp_path / "alone", "engine=openai", f"engine.base_url={server}")
    together = run(tmp_path / "together", "engine=openai", f"engine.base_url={server}", "measure.concurrency=4")
    columns = ["prompt", "turn", "repetition"]
    both = alone.cells.merge(together.cells, on=columns, suffixes=("", "_together"))
    assert len(both) == 6 and both.tokens.tolist() == both.tokens_together.tolist()
    figures = [run.summary["strategies"]["ddtree"] for run in (alone, together)]
    assert figures[0]["rounds"] == figures[1]["rounds"] > 0 and figures[0]["accepted_histogram"] == figures[1]["accepted_histogram"]
    assert figures[1]["in_flight_max"] == 4
