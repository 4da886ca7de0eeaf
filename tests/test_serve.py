"""``python -m harness.serve``: the command that it prints and becomes, for an engine that need not be installed for that."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from tiny_decoding import loaded, proposers

from harness import serve
from harness.engines.vllm import serving
from harness.engines.vllm.serving import flags


@pytest.fixture(scope="module")
def tiny(tiny_models, tmp_path_factory):
    """Options that name a tiny target and a DFlash drafter for it."""
    folder, drafters = tiny_models["llama"].folder, tmp_path_factory.mktemp("drafters")
    proposers(loaded(folder), drafters)
    return ["model=local", f"model.path={folder}", "model.dtype=float32"], f"strategy.drafter={drafters / 'dflash'}"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """``call(*arguments)`` gives exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["harness.serve", *arguments])
        try:
            status = serve.main()
        except SystemExit as stop:
            status = stop.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def options(line: str) -> tuple[dict[str, str], list[str]]:
    """Variables and words of a printed command."""
    words = shlex.split(line)
    start = next(i for i, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:start]), words[start:]


def test_the_plugin_is_turned_on_for_ddtree_and_for_nothing_else(call, tiny):
    model, drafter = tiny
    printed = {}
    for name in ("baseline", "dflash", "ddtree"):
        more = [drafter] if name != "baseline" else []
        status, out, err = call(f"strategy={name}", *model, *more, "dry_run=true")
        assert status == 0 and len(out.splitlines()) == 1, err
        printed[name] = options(out)
    variables, words = printed["ddtree"]
    added = {name: set(found[1]) - set(printed["baseline"][1]) for name, found in printed.items()}
    plugin, settings = "strategies.ddtree.vllm_plugin.worker.DDTreeWorker", '{"ddtree": {"budget": 15}}'
    assert added["baseline"] == set() and {plugin, settings} <= added["ddtree"] and not {plugin, settings} & added["dflash"]
    speculation = json.loads(words[words.index("--speculative-config") + 1])
    assert speculation["method"] == "dflash" and speculation["num_speculative_tokens"] == 15
    assert {"--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling"} <= set(printed["baseline"][1])
    assert len({json.dumps(found[0]) for found in printed.values()}) == 1, "all strategies get the same variables"
    root = Path(serve.__file__).resolve().parent.parent
    assert variables["PYTHONPATH"].split(":")[0] == str(root) and "VLLM_ENABLE_V1_MULTIPROCESSING" not in variables


def test_options_of_the_engine_and_the_address_reach_the_command(call, tiny):
    model, drafter = tiny
    more = ["engine.max_num_seqs=32", "engine.max_model_len=512", "strategy.budget=40", "port=8765", "host=0.0.0.0"]
    _, out, _ = call("strategy=ddtree", *model, drafter, *more, "dry_run=true")
    words = options(out)[1]
    value = lambda option: words[words.index(option) + 1]  # noqa: E731
    assert (value("--max-num-seqs"), value("--max-model-len"), value("--port"), value("--host")) == ("32", "512", "8765", "0.0.0.0")
    assert json.loads(value("--speculative-config"))["num_speculative_tokens"] == 40
    assert value("--served-model-name") == "local" and value("--dtype") == "float32" and value("--generation-config") == "vllm"


def test_it_becomes_the_server(call, tiny, monkeypatch):
    ran = []
    monkeypatch.setattr(serve.os, "execvpe", lambda *given: ran.append(given))
    monkeypatch.setenv("OF_THE_USER", "kept")
    status, out, err = call("strategy=baseline", *tiny[0])
    program, words, variables = ran[0]
    assert out == "" and shlex.join(words) in err and program == words[0]
    assert variables["OF_THE_USER"] == "kept" and variables["HF_HUB_OFFLINE"] == "1"


def test_a_build_under_another_package_name_is_started_as_a_module(monkeypatch):
    monkeypatch.setattr(serving, "find_spec", lambda name: object())
    monkeypatch.setattr(serving, "_has_metadata", lambda name: False)
    assert serving._program("m") == (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m")
    monkeypatch.setattr(serving, "_has_metadata", lambda name: True)
    assert serving._program("m")[1:] == ("serve", "m") and serving._program("m")[0].endswith("vllm")


def test_fields_become_options():
    fields = {"a_b": True, "c": False, "d": None, "e": 1.5, "f": {"g": [1]}}
    assert list(flags(fields)) == ["--a-b", "--no-c", "--e", "1.5", "--f", '{"g": [1]}']


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["engine=torch"], ["engine=torch", "take engine=vllm"]),
        (["engine=openai"], ["engine=openai", "take engine=vllm"]),
        (["engine=null"], ["engine=null"]),
        (["port=0"], ["port=0", "65535"]),
        (["port=eight"], ["port=eight"]),
        (["strategy.budget=many"], ["strategy.budget=many"]),
        (["strategy.budget=0"], ["strategy.budget=0"]),
        (["+engine.warp=1"], ["engine.warp"]),
        (["model.path=nowhere"], ["model.path=nowhere"]),
        (["strategy.drafter=nowhere"], ["nowhere"]),
    ],
)
def test_wrong_input_gets_one_line(call, tiny, arguments, words):
    status, out, err = call("strategy=ddtree", *tiny[0], tiny[1], *arguments, "dry_run=true")
    assert status == 2 and out == "" and len(err.splitlines()) == 1, err
    assert all(word in err for word in words), err


def test_an_engine_that_is_not_installed_gets_one_line(call, tiny, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("harness.engines.vllm.serving._program", lambda model: ("vllm", "serve", model))
    status, _, err = call("strategy=baseline", *tiny[0])
    assert status == 2 and "vllm: cannot be started" in err.splitlines()[-1]


def test_help_names_the_keys(call):
    _, out, _ = call("--help")
    assert all(f"\n{word}" in out for word in ("strategy", "engine", "model", "host, port", "dry_run", "python -m harness.serve "))
