"""The benchmark of vLLM: what it makes of a trace, worked out by hand."""

import pytest

from benchmarks.vllm_speed import profile
from benchmarks.vllm_speed.trace import REST, device_class, summary


def event(cat, name, begin, end, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "pid": 1, "tid": 1, "args": args}


def rounds(count):
    """Rounds of 10 ms: ``outer`` from 1 to 9 with ``inner`` from 2 to 5, a product of 3 ms launched in inner at 2 and run from 3 to 6,
    a sort of 1 ms launched in outer at 6 and run from 7 to 8, and a wait in outer from 6.5 to 8."""
    found = [{"ph": "M", "name": "process_name"}, event("user_annotation", "before", -9000, -1)]
    for number in range(count):
        at = 10_000 * number
        found += [
            event("user_annotation", "round", at, at + 10_000),
            event("user_annotation", "outer", at + 1000, at + 9000),
            event("user_annotation", "inner", at + 2000, at + 5000),
            event("cuda_runtime", "cudaLaunchKernel", at + 2000, at + 2010, correlation=2 * number + 1),
            event("kernel", "sm90_xmma_gemm_bf16", at + 3000, at + 6000, correlation=2 * number + 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 6000, at + 6010, correlation=2 * number + 2),
            event("kernel", "radixSort", at + 7000, at + 8000, correlation=2 * number + 2),
            event("cuda_runtime", "cudaStreamSynchronize", at + 6500, at + 8000, correlation=1000 + number),
        ]
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_a_rounds_time_is_told_by_device_and_host(count):
    found = summary(rounds(count), "round")
    assert found["rounds"] == count and found["round_ms"] == 10
    assert (found["device_busy_ms"], found["device_idle_ms"]) == (4, 6)
    assert (found["operations"], found["host_calls_that_launch"], found["synchronisations"], found["synchronisations_ms"]) == (2, 2, 1, 1.5)
    assert found["device"] == [{"what": "matrix products", "ms": 3, "operations": 1}, {"what": "sorting and top-k", "ms": 1, "operations": 1}]
    host = {row.pop("span"): list(row.values()) for row in found["host"]}
    # own ms, device idle meanwhile, launched, of how many ms, synchronisations, ms in them
    assert host == {"outer": [5, 3, 1, 1, 1, 1.5], "inner": [3, 1, 1, 3, 0, 0], REST: [2, 2, 0, 0, 0, 0]}


def test_a_trace_without_a_device_or_without_rounds():
    found = summary([e for e in rounds(2) if e.get("cat") == "user_annotation"], "round")
    assert (found["device_busy_ms"], found["device_idle_ms"], found["device"]) == (0, 10, [])
    with pytest.raises(ValueError, match="no span called 'round'"):
        summary([], "round")


@pytest.mark.parametrize("name, category, words", [
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>", "kernel", "attention of FlashAttention"),
    ("triton_red_fused_add_rms_norm_0", "kernel", "compiled by inductor"),
    ("void at::native::vectorized_elementwise_kernel<4>", "kernel", "element by element, copies in the device"),
    ("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", "copies to the host"), ("Memcpy HtoD", "gpu_memcpy", "copies to the device"),
    ("Memset (Device)", "gpu_memset", "element by element, copies in the device"), ("mystery", "kernel", "other"),
])  # fmt: skip
def test_kernels_are_told_apart_by_name(name, category, words):
    assert device_class(name, category) == words


def test_the_profiles_page_names_what_failed():
    told = {"ddtree": {"failed": "EngineCrash: died"}, "dflash": {
        **summary(rounds(2), "round"), "device_name": "H", "tokens_per_s": 1.0, "nodes_a_round": 7.0, "round_ms_without_profiler": 9.0}}  # fmt: skip
    text = profile.page(told)
    assert "- ddtree failed: EngineCrash: died" in text and "| dflash | 9.00 | 10.00 | 4.00 | 6.00 |" in text and "| nothing | 6.000 | |" in text


def test_named_functions_are_named_in_a_trace_and_left_as_they_were(tmp_path):
    import json

    import torch

    from harness.engines.vllm.profiling import named

    usual = json.dumps
    with named(["json:dumps", "json:nothing", "no.such.module:x"]) as missing, torch.profiler.profile() as profiler:
        assert json.dumps([1]) == "[1]"
    assert missing == ["json:nothing", "no.such.module:x"] and json.dumps is usual
    assert any(event.name == "dumps" for event in profiler.events())


def test_runs_behind_dashes_share_one_engine_and_keep_their_own_suites(tmp_path, monkeypatch):
    from benchmarks.vllm_speed import __main__ as command

    built, ran = [], []

    class Engine:
        def close(self):
            built.append("closed")

    monkeypatch.setattr(command, "build_engine", lambda plan: built.append(plan) or Engine())
    monkeypatch.setattr(command, "run", lambda config, engine: ran.append((config.suite.name, config.suite.limit)) or 0)
    common = ["vllm_speed", "--stage", "measure", "--output", str(tmp_path), "suite.limit=3"]
    for own, wanted in (([], [("three", 3)]), (["--", "suite=quick", "--", "suite=three", "suite.limit=2"], [("quick", 3), ("three", 2)])):
        built.clear(), ran.clear()
        monkeypatch.setattr("sys.argv", common + own)
        assert command.main() == 0 and ran == wanted and built[1:] == ["closed"]


@pytest.mark.parametrize("own, words", [
    ("arms.ddtree_15.budget=7", "another arms"), ("strategy.budget=7", "another strategy"), ("engine.max_num_seqs=2", "another engine"),
])  # fmt: skip
def test_a_run_that_needs_another_engine_is_refused_before_one_is_loaded(tmp_path, monkeypatch, capsys, own, words):
    from benchmarks.vllm_speed import __main__ as command

    monkeypatch.setattr(command, "build_engine", lambda plan: pytest.fail("loaded"))
    monkeypatch.setattr("sys.argv", ["vllm_speed", "--output", str(tmp_path), "--", "suite.limit=3", "--", own])
    assert command.main() == 2 and words in capsys.readouterr().err


def test_the_engine_is_closed_however_a_run_ends(tmp_path, monkeypatch):
    from benchmarks.vllm_speed import __main__ as command

    closed = []
    monkeypatch.setattr(command, "build_engine", lambda plan: type("Engine", (), {"close": lambda self: closed.append(1)})())
    monkeypatch.setattr(command, "run", lambda config, engine: 1 / 0)
    monkeypatch.setattr("sys.argv", ["vllm_speed", "--stage", "measure", "--output", str(tmp_path)])
    with pytest.raises(ZeroDivisionError):
        command.main()
    assert closed == [1]


def test_an_interrupted_run_is_the_last(tmp_path, monkeypatch):
    from benchmarks.vllm_speed import __main__ as command

    ran = []
    monkeypatch.setattr(command, "build_engine", lambda plan: type("Engine", (), {"close": lambda self: None})())
    monkeypatch.setattr(command, "run", lambda config, engine: ran.append(config.suite.limit) or 130)
    monkeypatch.setattr("sys.argv", ["vllm_speed", "--stage", "measure", "--output", str(tmp_path), "--", "suite.limit=3", "--", "suite.limit=2"])
    assert command.main() == 130 and ran == [3]
