"""``strategy.budget=auto``: whatever size a round picks, outputs are the baseline's, alone and in batches, eager and captured."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from reference_models import generate
from test_command import harness, last_line  # noqa: F401  (a fixture)
from test_torch_batch import requests
from tiny_decoding import drafter_config, greedy, loaded, proposers, shaken, tiny_config, tiny_target

import harness as package
import strategies.ddtree
from harness.engines.torch import captured
from harness.engines.torch.captured import CapturedPool
from harness.engines.torch.costs import RoundCosts
from harness.engines.torch.decode import decode, decode_with
from harness.engines.torch.engine import target_view
from harness.engines.torch.tree_size import TreeSize
from harness.errors import UserError
from harness.records import Request, Sampling
from harness.suites import SuiteConfig, load
from strategies.ddtree.proposer import AUTO, LADDER
from strategies.dflash.checkpoint import new_drafter, save_drafter

pytestmark = pytest.mark.timeout(120)
CONFIGURATION = Path(__file__).resolve().parent.parent / "conf" / "strategy" / "ddtree.yaml"


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request):
    return tiny_target(tiny_config(request.param, vocab_size=64), seed=3)


@pytest.fixture(scope="module")
def auto(model, tmp_path_factory):
    return proposers(model, tmp_path_factory.mktemp("drafters"), budget=AUTO)["ddtree"]


@pytest.fixture
def all_sizes(monkeypatch):
    """However dear they are here."""
    monkeypatch.setattr("harness.engines.torch.costs._MOST_TIMES", 1e9)


@pytest.fixture
def any_size(monkeypatch, all_sizes):
    """Sizes picked by chance, so that every one of them comes; what was picked, in order."""
    chance, picked = random.Random(0), []

    def pick(self):
        picked.append(chance.choice(LADDER))
        return picked[-1]

    monkeypatch.setattr(TreeSize, "picked", pick)
    return picked


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_k": 20}], ids=["greedy", "sampled"])
def test_any_size_in_any_round_gives_the_baselines_tokens(model, auto, any_size, batch, sampling):
    asked = requests(batch, **sampling)
    costs = RoundCosts(model).table("ddtree", auto, asked)
    wanted = [decode(model, auto, [request], RoundCosts(model).table("", auto, [request]))[0].tokens for request in asked]
    any_size.clear()
    found = decode(model, auto, asked, costs)
    assert [decoded.tokens for decoded in found] == wanted
    for request, decoded in zip(asked, found, strict=True):
        if not sampling and decoded.finish_reason == "length":
            assert list(decoded.tokens) == greedy(model, request.prompt_ids, len(decoded.tokens))
        assert [r.proposed + 1 for r in decoded.rounds] == any_size[: len(decoded.rounds)]
    assert len(set(any_size)) > 3 or batch == 1


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_sizes_picked_by_this_machines_costs(model, auto, batch):
    asked = [Request(tuple(range(start + 1, start + 9)), (), Sampling(max_new_tokens=24)) for start in range(batch)]
    for request, decoded in zip(asked, decode(model, auto, asked, RoundCosts(model).table("ddtree", auto, asked)), strict=True):
        assert list(decoded.tokens) == greedy(model, request.prompt_ids, 24)
        assert {r.proposed + 1 for r in decoded.rounds} <= set(LADDER)


def test_smollm2(smollm2_models):
    """With the shipped drafter and measured costs, alone and together, against Transformers' ``generate``."""
    model, tokenizer = smollm2_models.ours, smollm2_models.checkpoint.tokenizer
    ends = model.config.end_tokens
    auto = strategies.ddtree.build(target_view(model), "ddtree", "smollm2-135m", AUTO)
    rows = load(SuiteConfig("quick", limit=2)).rows
    asked = [tuple(tokenizer.render([{"role": "user", "content": row.turns[0]}])) for row in rows]
    asked = [Request(prompt, ends, Sampling(max_new_tokens=24)) for prompt in asked]
    wanted = [generate(smollm2_models.theirs, request.prompt_ids, 24, ends) for request in asked]
    known = RoundCosts(model)
    alone = [decode(model, auto, [request], known.table("ddtree", auto, [request]))[0] for request in asked]
    assert [list(decoded.tokens) for decoded in alone] == wanted
    assert [list(d.tokens) for d in decode(model, auto, asked, known.table("ddtree", auto, asked))] == wanted
    assert [table.batch for _, table in known.measured] == [1, 2]


@pytest.fixture
def graphs(monkeypatch):
    """Captured rounds without a GPU: what would be recorded runs again at every replay. ``graphs`` lists the replays."""
    replays = []

    def record(work, pool):
        part = work.__name__ if hasattr(work, "__name__") else work.func.__name__
        rows = work.args[0] if hasattr(work, "args") else None

        def replay():
            replays.append((part, rows))
            work()

        return replay

    monkeypatch.setattr(captured, "Recorded", record)
    monkeypatch.setattr(captured, "can_switch", lambda: False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return replays


def test_a_captured_round_is_one_graph_or_a_draft_and_the_verification_of_its_size(model, auto, graphs, any_size, tmp_path):
    pool = CapturedPool(model)
    request = Request((9, 8, 7), (), Sampling(max_new_tokens=30))
    wanted = greedy(model, request.prompt_ids, 30)
    for name, proposer in {**proposers(model, tmp_path), "ddtree": auto}.items():
        rounds = pool.of(name, proposer, [request])
        graphs.clear()
        any_size.clear()
        (decoded,) = decode_with(rounds, [request])
        assert list(decoded.tokens) == wanted, name
        sizes = [r.proposed + 1 for r in decoded.rounds]
        if name == "ddtree":
            assert graphs == [call for size in sizes for call in (("draft", None), ("verify", size))]
            assert sizes == any_size and len(set(sizes)) > 3
        else:
            assert graphs == [("_whole", None)] * len(sizes)


def test_where_the_device_can_decide_a_round_of_any_size_is_one_graph(model, auto, graphs, any_size, monkeypatch):
    """Of ``Switched`` stands here what it does: the first, then the case of the number that is on the device by then."""
    launched = []

    def switch(first, picked, cases):
        def replay():
            first()
            launched.append(int(picked))
            cases[launched[-1]]()

        return replay

    monkeypatch.setattr(captured, "can_switch", lambda: True)
    monkeypatch.setattr(captured, "Switched", switch)
    request = Request((9, 8, 7), (), Sampling(max_new_tokens=30))
    rounds = CapturedPool(model).of("ddtree", auto, [request])
    any_size.clear()
    (decoded,) = decode_with(rounds, [request])
    assert list(decoded.tokens) == greedy(model, request.prompt_ids, 30) and any_size == [], "the host reads no size"
    assert [r.proposed + 1 for r in decoded.rounds] == [rounds.costs.rows[number] for number in launched][: len(decoded.rounds)]


@torch.inference_mode()
def test_captured_rounds_go_by_the_costs_of_their_own_graphs(model, auto, graphs, all_sizes):
    pool = CapturedPool(model)
    asked = [Request((9, 8, 7), (), Sampling(max_new_tokens=30))] * 2
    rounds = pool.of("ddtree", auto, asked)
    ((name, table),) = pool.measured
    assert name == "ddtree" and table.batch == 2 and table == rounds.costs and table.contexts == rounds.size.contexts
    assert {rows for part, rows in graphs if part == "verify"} == set(table.rows) == set(LADDER)
    assert pool.of("ddtree", auto, asked) is rounds and len(pool.measured) == 1
    free = ((1.0,) * len(LADDER),) * len(table.contexts)
    rounds.size.learn(replace(table, rows=LADDER, verify_s=free))
    graphs.clear()
    decode_with(rounds, asked)
    assert {rows for part, rows in graphs if part == "verify"} == {LADDER[-1]}, "free rows are all taken"


def test_what_is_too_dear_is_not_captured(model, auto, graphs, monkeypatch):
    monkeypatch.setattr("harness.engines.torch.costs._MOST_TIMES", 1e-9)
    rounds = CapturedPool(model).of("ddtree", auto, [Request((9, 8, 7), (), Sampling(max_new_tokens=30))])
    assert rounds.costs.rows == (4,) and {rows for part, rows in graphs if part == "verify"} == {4, 8}


@pytest.fixture
def run(harness, tiny_models, tmp_path):  # noqa: F811
    """``run(*arguments)``: the command with a tiny target and a random drafter, greedy fp32."""
    folder = tiny_models["llama"].folder
    save_drafter(shaken(new_drafter(drafter_config(loaded(folder), num_target_layers=2)), 1), tmp_path / "drafter")
    fixed = ["model=local", f"model.path={folder}", "model.dtype=float32", "suite.limit=2", "sampling.max_new_tokens=8"]
    return lambda *arguments: harness(*fixed, f"strategy.drafter={tmp_path / 'drafter'}", *arguments)


def test_a_run_stores_the_costs_and_measures_a_fixed_budget_beside(run, harness, tmp_path):  # noqa: F811
    status, out, err = run("strategy.budget=auto")
    assert status == 0, err
    result = last_line(out)
    assert list(result["strategies"]) == ["baseline", "ddtree_fixed", "ddtree"]
    assert all(figures["identical"] == 1 for figures in result["strategies"].values())
    folder = Path(result["run"])
    config = OmegaConf.load(folder / "config.yaml")
    assert config.strategy.budget == "auto" and config.arms.ddtree_fixed.budget == OmegaConf.load(CONFIGURATION).budget
    assert config.arms.ddtree_fixed.drafter == config.strategy.drafter

    summary = json.loads((folder / "summary.json").read_text())
    (table,) = summary["costs"]
    assert (table["session"], table["strategy"], table["batch"], table["contexts"]) == (0, "ddtree", 1, [256])
    assert len(table["verify_s"][0]) == len(table["rows"]) and table["rows"] == list(LADDER[: len(table["rows"])])
    assert list(summary["strategies"]["ddtree_fixed"]["proposed_histogram"]) == ["15"]
    sizes = summary["strategies"]["ddtree"]["proposed_histogram"]
    assert sum(sizes.values()) == summary["strategies"]["ddtree"]["rounds"]
    assert {int(nodes) + 1 for nodes in sizes} <= set(table["rows"])
    (told,) = [note for note in summary["notes"] if "nodes a round" in note]
    assert told.startswith("ddtree: ") and all(f"{nodes} in" in told for nodes in sizes) and told in out

    frame = package.load(folder).costs
    assert list(frame.rows) == table["rows"] and list(frame.verify_s) == table["verify_s"][0] and set(frame.context) == {256}

    cells = (folder / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "cells.jsonl").write_bytes(b"".join(cells[:-2]))
    (folder / "summary.json").unlink()
    status, out, err = harness(f"resume={folder}")
    assert status == 0, err
    assert list(last_line(out)["strategies"]) == ["baseline", "ddtree_fixed", "ddtree"]
    assert {table["session"] for table in package.load(folder).summary["costs"]} == {0, 1}


def test_without_auto_nothing_is_measured_for_it(run):
    _, out, _ = run("strategy.budget=3", "suite.limit=1")
    folder = Path(last_line(out)["run"])
    assert list(last_line(out)["strategies"]) == ["baseline", "ddtree"] and not (folder / "costs.jsonl").exists()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["costs"] == [] and not any("nodes a round" in note for note in summary["notes"])


@pytest.mark.parametrize("budget", [0, 1025, "many", 2.5])
def test_what_is_no_budget_is_refused(model, budget):
    drafter = new_drafter(drafter_config(model))
    with pytest.raises(UserError, match=f"strategy.budget={budget} .* from 1 to 1024, or auto"):
        strategies.ddtree.proposer.TreeProposer(drafter, target_view(model), budget)


def test_vllm_refuses_it(tmp_path):
    with pytest.raises(UserError, match="strategy.budget=auto: .*engine=torch.* from 1 to 128"):
        strategies.ddtree.vllm_arguments(tmp_path, "cpu", "ddtree", "smollm2-135m", "auto")
