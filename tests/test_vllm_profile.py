"""The profile of a round: what a trace says, worked out by hand, and the whole of it on a CPU."""

import json
import os
import subprocess
import sys

import pytest
from vllm_runs import ROOT, needs_vllm

from benchmarks.trace import OUTSIDE, innermost, kernel_class, summarise, union


def event(name: str, begin: float, end: float, cat: str = "user_annotation") -> dict:
    return {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": end - begin}


# Two rounds of 100 us and 10 us of the harness between them.
TRACE = [
    event("round", 1000, 1100), event("round", 1110, 1210),
    event("phase: runner.execute_model", 1010, 1060), event("phase: runner._prepare_inputs", 1015, 1025), event("phase: runner._sample", 1060, 1090),
    event("flash_fwd_splitkv", 1020, 1040, "kernel"), event("nvjet_tst_64x8", 1040, 1050, "kernel"),
    event("nvjet_tst_64x8", 1045, 1055, "kernel"), event("Memcpy DtoH (Device -> Pageable)", 1085, 1088, "gpu_memcpy"),
    event("cudaLaunchKernel", 1012, 1013, "cuda_runtime"), event("cudaGraphLaunch", 1013, 1014, "cuda_runtime"),
    event("cudaStreamSynchronize", 1080, 1089, "cuda_runtime"), event("nvjet_before", 900, 990, "kernel"),
    {"ph": "i", "name": "an instant", "ts": 1020}, event("round", 1000, 1100, "gpu_user_annotation"),
]  # fmt: skip


def test_a_trace_by_hand():
    found = summarise(TRACE)
    assert found["rounds"] == 2 and found["wall_us"] == 100
    # 1020 to 1055 and 1085 to 1088 in two rounds; of the rounds' 200 us the rest is idle.
    assert found["gpu"] == {"busy_us": 19, "idle_us": 81}
    assert found["classes"]["matrix products"] == {"us": 10, "times": 1} and found["classes"]["attention"] == {"us": 10, "times": 0.5}
    assert list(found["kernels"]) == ["flash_fwd_splitkv", "nvjet_tst_64x8", "Memcpy DtoH (Device -> Pageable)"]
    # Idle: 1000-1020, 1055-1085, 1088-1100, 1110-1210; phases there: execute_model 1010-1015 and 1055-1060, prepare 1015-1020,
    # sample 1060-1085 and 1088-1090, nothing in 1000-1010, 1090-1100 and the second round.
    assert found["idle_by_phase"] == {OUTSIDE: 60, "runner._sample": 13.5, "runner.execute_model": 5, "runner._prepare_inputs": 2.5}
    assert found["host_by_phase"] == {OUTSIDE: 60, "runner.execute_model": 20, "runner._sample": 15, "runner._prepare_inputs": 5}
    assert found["waits"] == {"cudaStreamSynchronize": {"us": 4.5, "times": 0.5}} and found["launches"] == 1
    assert [(gap["times"], gap["us"]) for gap in found["gaps"]] == [(0, 0), (0.5, 6), (1, 25), (0.5, 50)]


def test_a_trace_of_a_cpu_has_phases_and_no_gpu():
    found = summarise([event("round", 0, 50), event("phase: commit", 10, 20), event("aten::mm", 12, 14, "cpu_op")])
    assert found["gpu"] == {"busy_us": 0, "idle_us": 0} and found["classes"] == {} and found["host_by_phase"] == {OUTSIDE: 40, "commit": 10}


def test_a_trace_without_a_round_is_refused():
    with pytest.raises(ValueError, match="no round"):
        summarise([event("phase: commit", 0, 1)])


def test_pieces_of_nested_marks_add_up():
    assert innermost([("a", 0, 10), ("b", 2, 4), ("c", 4, 6), ("d", 5, 6), ("e", 12, 13)]) == [
        ("a", 0, 2), ("b", 2, 4), ("c", 4, 5), ("d", 5, 6), ("a", 6, 10), ("e", 12, 13)
    ]  # fmt: skip
    assert union([(3, 5), (0, 1), (4, 7), (7, 8)]) == [(0, 1), (3, 8)]


KINDS = {
    "void flash::FlashAttnFwdSm90<...>": "attention",
    "nvjet_tst_128x8_64x12_1x2_h_bz_splitK_TNT": "matrix products",
    "void vllm::rms_norm_kernel<c10::BFloat16>": "norms, rotary, activations",
    "triton_poi_fused_add_mul_silu_0": "norms, rotary, activations",
    "void vllm::reshape_and_cache_flash_kernel<...>": "cache writes",
    "largest_of_groups_kernel": "tree: this project's kernels",
    "_tree_attention_kernel": "tree: this project's kernels",
    "Memcpy HtoD (Pageable -> Device)": "copies",
    "void at::native::index_elementwise_kernel<128, 4>": "gathering and scattering",
    "void at::native::vectorized_elementwise_kernel<4>": "element by element",
    "void at::native::reduce_kernel<512, 1, ArgMaxOps>": "top-k, arg-max, sorting",
    "some_new_kernel": "others",
}


@pytest.mark.parametrize("name, kind", KINDS.items())
def test_kernels_are_told_apart_by_their_names(name, kind):
    assert kernel_class(name) == kind


class TestOnACPU:
    pytestmark = needs_vllm

    def test_tiny_writes_both_files(self, tmp_path):
        command = [sys.executable, "-m", "benchmarks.vllm_profile", "--tiny", "--budget", "15", "--output", str(tmp_path)]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths})
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads((tmp_path / "profile-ddtree-15.json").read_text())
        assert found["per_round"]["rounds"] == 3 and found["round_us"] > 0
        assert found["per_round"]["host_by_phase"].keys() >= {"runner._sample", "best_first_tree", "drafter.propose"}
        assert sum(found["per_round"]["host_by_phase"].values()) == pytest.approx(found["per_round"]["wall_us"], rel=0.01)
        assert "A round of ddtree 15 in vLLM" in (tmp_path / "profile-ddtree-15.md").read_text()
