"""What is written about the machine, and what must not be."""

import hashlib
import json

from harness import environment, memory
from harness.environment import telling_variables


def test_secrets_stay_out():
    variables = {
        "HF_TOKEN": "hf_x",
        "HARNESS_API_KEY": "k",
        "VLLM_PASSWORD": "p",
        "TORCH_HOME": "/t",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_ENDPOINT": "https://me:secret@hub.example/x",
        "EDITOR": "vi",
    }
    assert telling_variables(variables) == {
        "HF_ENDPOINT": "https://***@hub.example/x",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_HOME": "/t",
    }


def test_the_description_is_json_and_says_who_measured():
    found = json.loads(json.dumps(environment.describe({"dtype": "x"}, {"sha256": "y"}, {"measure": 1})))
    assert found["engine"] == {"dtype": "x"} and found["suite"] == {"sha256": "y"} and found["seeds"] == {"measure": 1}
    assert found["cpu"]["model"] and found["memory_bytes"] > 0 and "numpy" in found["packages"]


def test_the_machine_says_who_sets_its_clocks_and_how_busy_it_is():
    found = environment.cpu()
    assert {"governor", "max_mhz", "load_average", "usable_cores"} <= set(found) and len(found["load_average"]) == 3
    assert isinstance(environment.gpus(), list)


def test_every_drafter_is_named_by_its_files_checksum(tmp_path):
    from tiny_decoding import proposers, tiny_target

    from harness.engines.torch.engine import _drafter

    found = {name: _drafter(proposer) for name, proposer in proposers(tiny_target(), tmp_path).items()}
    sha256 = {name: hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest() for name in ("mtp", "dflash")}
    assert found["baseline"] is None and found["mtp"] == {"files": ["model.safetensors"], "sha256": sha256["mtp"]}
    assert found["dflash"] == found["ddtree"] == {"files": ["model.safetensors"], "sha256": sha256["dflash"]}


def test_git_state_outside_a_repository(tmp_path):
    assert environment.git_state(tmp_path) is None


def test_peak_memory_sees_a_large_array():
    memory.reset_peaks()
    before = memory.host_peak_bytes()
    array = bytearray(b"x") * 64_000_000
    del array
    assert memory.host_peak_bytes() - before > 30_000_000
    assert memory.device_peak_bytes() >= 0
