"""How the processes of ``engine=vllm`` start and end, with a made-up program in the place of vLLM."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from vllm_tiny import write_pair

from harness.engines.vllm import client, engine
from harness.engines.vllm.arguments import Settings
from harness.engines.vllm.client import EngineCrash, EngineProcess, close_together, start_together
from harness.errors import UserError

# Says who it is, then does what its strategy is called; "meets" loads only when all others are loading too.
PROGRAM = """
import json, os, sys, time
from pathlib import Path
asked = json.loads(sys.stdin.readline())
does, here = asked["strategy"]["does"], Path(os.environ["HERE"])
(here / str(os.getpid())).write_text(json.dumps({name: os.environ.get(name) for name in ("VLLM_CACHE_ROOT",)} | asked["arguments"]))
deadline = time.monotonic() + 20
while does == "meets" and len(list(here.iterdir())) < int(os.environ["ALL"]) and time.monotonic() < deadline:
    time.sleep(0.01)
if does == "meets" and time.monotonic() >= deadline:
    sys.exit("Error: alone")
if does == "dies":
    sys.exit("ValueError: no room")
if does == "sleeps":
    time.sleep(100)
print(json.dumps({"refused": "not that"} if does == "refuses" else {"settings": {"copy_bytes_per_s": 1.0}, "probe": []}), flush=True)
sys.stdin.read()
if does == "stays":
    time.sleep(100)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The folder where the processes that were started have left their numbers."""
    here = tmp_path / "started"
    here.mkdir()
    monkeypatch.setattr(client, "PROGRAM", (sys.executable, "-c", PROGRAM))
    monkeypatch.setenv("HERE", str(here))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return here


def processes(*does, start_timeout_s=30.0):
    variables = {"ALL": str(len(does))}
    return [EngineProcess(f"arm{n}", {"name": "ddtree", "does": what}, {}, variables, start_timeout_s, 5.0) for n, what in enumerate(does)]


def alive(here: Path) -> list[int]:
    return [int(entry.name) for entry in here.iterdir() if Path(f"/proc/{entry.name}").exists()]


def test_all_load_at_the_same_time(program):
    started = processes("meets", "meets", "meets")
    start_together(started)
    assert all(process.settings for process in started) and len(alive(program)) == 3
    close_together(started)
    assert not alive(program)


def test_one_after_another_they_would_not_meet(program, monkeypatch):
    """What the test above relies on."""
    monkeypatch.setattr(client, "PROGRAM", (sys.executable, "-c", PROGRAM.replace("+ 20", "+ 0.5")))
    with pytest.raises(EngineCrash, match="arm0 died while loading .*Error: alone"):
        processes("meets", "meets")[0].start()


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_start_that_fails_names_its_arm_and_ends_the_others(program, tmp_path, bad):
    does = ["sleeps", "sleeps", "sleeps"]
    does[bad] = "dies"
    begun = time.monotonic()
    with pytest.raises(EngineCrash, match=rf"vLLM's process for arm{bad} died while loading \(status 1\): ValueError: no room") as caught:
        start_together(processes(*does))
    assert time.monotonic() - begun < 10, "the others were not waited for"
    assert not alive(program)
    log = tmp_path / "cache" / "vllm" / f"arm{bad}.log"
    assert str(log) in str(caught.value) and log.read_text() == "ValueError: no room\n"


def test_a_refusal_ends_the_others_too(program):
    with pytest.raises(UserError, match="not that"):
        start_together(processes("sleeps", "refuses"))
    assert not alive(program)


def test_a_start_that_takes_too_long_is_given_up(program):
    with pytest.raises(EngineCrash, match="gave no answer within 1 s while loading"):
        start_together(processes("sleeps", "loads", start_timeout_s=1.0))
    assert not alive(program)


def test_one_that_does_not_leave_is_killed(program, monkeypatch):
    monkeypatch.setattr(client, "_LEAVE_S", 0.3)
    started = processes("stays", "loads")
    start_together(started)
    close_together(started)
    assert not alive(program)


def test_ctrl_c_while_loading_leaves_no_process(program):
    words = (
        "import sys; from harness.engines.vllm import client; client.PROGRAM = (sys.executable, '-c', sys.argv[1])\n"
        "client.start_together([client.EngineProcess(str(n), {'does': 'sleeps'}, {}, {}, 60, 60) for n in range(2)])"
    )
    root = Path(__file__).resolve().parent.parent
    run = subprocess.Popen([sys.executable, "-c", words, PROGRAM], cwd=root, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while sum(bool(entry.read_text()) for entry in program.iterdir()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(alive(program)) == 2
    run.send_signal(signal.SIGINT)  # to it alone: a terminal would send it to the others as well
    assert b"KeyboardInterrupt" in run.communicate(timeout=15)[1]
    assert not alive(program)


# which engine starts how

@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


def build(tiny, monkeypatch, device, **does):
    settings = Settings(device, "float32", 1, 256, 8, 1024, 0.5, 0.2, True)
    import torch

    monkeypatch.setattr(engine, "choose_settings", lambda *_, **__: (settings, torch.float32))
    monkeypatch.setattr("strategies.dflash.vllm_arguments", lambda target, device, name, does, drafter: {})
    monkeypatch.setenv("ALL", str(len(does)))
    arms = {
        name: {"name": "dflash", "_target_": "strategies.dflash.build", "drafter": str(tiny / "drafter"), "does": what}
        for name, what in does.items()
    }
    return engine.VLLMEngine({"name": "tiny", "path": str(tiny / "target"), "source": None, "dtype": "float32"}, arms)


def told(here: Path) -> list[dict]:
    return [json.loads(entry.read_text()) for entry in here.iterdir()]


def test_on_a_gpu_all_arms_start_together_with_the_same_memory(tiny, program, monkeypatch):
    made = build(tiny, monkeypatch, "cuda", first="meets", second="meets")
    heard = told(program)
    assert {given["kv_cache_memory_bytes"] for given in heard} == {1 << 29}
    assert {given["gpu_memory_utilization"] for given in heard} == {0.2}
    assert {Path(given["VLLM_CACHE_ROOT"]).name for given in heard} == {"first", "second"}, "each compiles into a folder of its own"
    made.close()
    assert not alive(program)


def test_on_a_gpu_one_arm_that_fails_ends_the_run(tiny, program, monkeypatch):
    with pytest.raises(UserError, match="engine=vllm: vLLM's process for second died while loading .*no room"):
        build(tiny, monkeypatch, "cuda", first="loads", second="dies")
    assert not alive(program)


def test_on_a_cpu_arms_start_in_turn_and_one_may_fail(tiny, program, monkeypatch):
    made = build(tiny, monkeypatch, "cpu", first="dies", second="loads")
    assert {given["VLLM_CACHE_ROOT"] for given in told(program)} == {os.environ.get("VLLM_CACHE_ROOT")}
    assert made.settings()["differs"] == {} and len(alive(program)) == 1
    made.close()
