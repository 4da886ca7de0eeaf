"""``engine=openai`` against a real HTTP server: a small one of the tests', which decodes a tiny model with the torch engine.

Nothing here measures vLLM. Times are only compared with pauses that the server makes on purpose.
"""

import json
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from openai_server import OpenAIServer
from test_command import harness, last_line  # noqa: F401  (a fixture)
from tiny_decoding import Oracle, loaded, proposers

import harness as package
from harness import metrics
from harness.engines.openai import OpenAIEngine
from harness.engines.torch.decode import decode
from harness.errors import UserError
from harness.models.vocabulary import load_vocabulary
from harness.records import Decoded, Request, Sampling

WHOLE = ["suite.limit=3", "suite.max_turns=1", "sampling.max_new_tokens=12", "model=local", "model.dtype=float32"]


@pytest.fixture(scope="session")
def tiny(tiny_models, tmp_path_factory):
    """A tiny Llama: its folder, and for each strategy a function that decodes with it.

    Random drafters are almost never right, so what is served as ``ddtree`` drafts trees that hold the true answer, 3, 0, 6
    and 1 tokens of it in turns, among wrong ones.
    """
    folder = tiny_models["llama"].folder
    model, vocabulary = loaded(folder), load_vocabulary(folder)
    found = proposers(model, tmp_path_factory.mktemp("drafters"), budget=12)
    decoders = {name: lambda asked, proposer=proposer: decode(model, proposer, [asked])[0] for name, proposer in found.items()}

    def with_true_trees(asked: Request) -> Decoded:
        return decode(model, Oracle(model, decoders["baseline"](asked).tokens), [asked])[0]

    decoders["ddtree"] = with_true_trees
    return SimpleNamespace(folder=folder, decoders=decoders, vocabulary=vocabulary)


@pytest.fixture
def serve(tiny):
    """``serve(strategy, **behaviour)`` starts a server that ends with the test."""
    started = []

    def start(strategy: str = "ddtree", **behaviour) -> OpenAIServer:
        tokenizer = tiny.vocabulary.tokenizer
        server = OpenAIServer(tiny.decoders[strategy], tokenizer.decode, tokenizer.render, **behaviour)
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def engine(tiny):
    """``engine(baseline=server, ...)`` is an engine whose arms are these servers."""
    made = []

    def build(options=None, **servers) -> OpenAIEngine:
        urls = {name: server.url for name, server in servers.items()}
        config = {"path": str(tiny.folder), "dtype": "float32"}
        made.append(OpenAIEngine(config, dict.fromkeys(servers, {}), base_url=urls, **(options or {})))
        return made[-1]

    yield build
    for one in made:
        one._client.close()


def request(engine, text: str = "the cat sat on the mat", alone: bool = True, **sampling) -> Request:
    messages = [{"role": "user", "content": text}]
    ids = tuple(engine.render(messages))
    return Request(ids, engine.end_tokens, Sampling(**{"max_new_tokens": 24, **sampling}), messages=tuple(messages), alone=alone)


def arms(**servers) -> str:
    return "engine.base_url={" + ", ".join(f"{name}: '{server.url}'" for name, server in servers.items()) + "}"


def test_a_run_over_http_is_the_torch_engines_run(harness, serve, tiny):  # noqa: F811
    servers = {name: serve(name) for name in ("baseline", "dflash", "ddtree")}
    status, out, err = harness(*WHOLE, f"model.path={tiny.folder}", "engine=openai", "experiment=compare", arms(**servers))
    assert status == 0, err
    run = package.load(last_line(out)["run"])
    assert list(run.summary["strategies"]) == ["baseline", "dflash", "ddtree"], "mtp has no server"
    assert "nothing to measure them with: mtp" in out and "is as its operator says" in out
    for row in run.cells.itertuples():
        served = servers[row.strategy].seen.bodies
        body = next(b for b in served if len(b["prompt"]) == row.prompt_tokens and b["max_tokens"] == 12)
        asked = Request(tuple(body["prompt"]), tuple(body["stop_token_ids"]), Sampling(max_new_tokens=12))
        truth = tiny.decoders[row.strategy](asked)
        assert tuple(row.tokens) == truth.tokens and row.finish_reason == truth.finish_reason
        assert row.rounds == len(truth.rounds) and row.acceptance_verified == metrics.acceptance_verified(truth)
        assert row.text == tiny.vocabulary.tokenizer.decode(truth.tokens)
    figures = run.summary["strategies"]["ddtree"]
    assert figures["identical"] == 1 and figures["acceptance_length"] > 2 and figures["peak_memory_bytes"] is None
    assert run.summary["losslessness"]["dtype"] == "float32" and "NOT LOSSLESS" not in out
    settings = run.environment["engine"]
    assert settings["prefix_caching"] is False and settings["servers"]["ddtree"]["prompts"] == "token ids"
    assert len(settings["model_sha256"]) == 64
    status, out, _ = harness(f"resume={run.folder}")
    assert status == 0 and len(package.load(run.folder).cells) == 9, "nothing was measured twice"


def test_one_address_measures_one_strategy_alone(harness, serve, tiny):  # noqa: F811
    server = serve("dflash")
    common = [*WHOLE, f"model.path={tiny.folder}", "engine=openai", "strategy=dflash"]
    status, out, err = harness(*common, f"engine.base_url={server.url}/v1/")
    assert status == 0, err
    found = last_line(out)["strategies"]
    assert list(found) == ["dflash"] and found["dflash"]["speedup"] is None and found["dflash"]["rounds"] > 0
    assert "nothing to measure them with: baseline" in out


def test_a_wrong_token_over_http_is_loud(harness, serve, tiny):  # noqa: F811
    right, wrong = serve("baseline"), serve("baseline")
    truth = wrong.decode
    wrong.decode = lambda asked: type(found := truth(asked))(**{**vars(found), "tokens": (*found.tokens[:-1], 2)})
    _, out, _ = harness(*WHOLE, f"model.path={tiny.folder}", "engine=openai", arms(baseline=right, ddtree=wrong))
    assert "NOT LOSSLESS: ddtree" in out


def test_bursts_are_seen_as_they_come(engine, serve):
    server = serve("ddtree", gap_s=0.05, first_s=0.1)
    built = engine(ddtree=server)
    decoded, truth = built.decode("ddtree", request(built)), server.decode(request(built))
    assert len({r.emitted for r in truth.rounds}) > 2
    assert [c.tokens for c in decoded.chunks] == [1, *(r.emitted for r in truth.rounds)] and decoded.rounds == ()
    assert metrics.chunk_tokens(decoded) == [r.emitted for r in truth.rounds]
    gaps = metrics.chunks_s(decoded)
    assert 0.1 <= decoded.ttft_s == decoded.chunks[0].at_s and min(gaps) > 0.04
    assert sum(gaps) == pytest.approx(metrics.decode_s(decoded)) and decoded.end_s == decoded.chunks[-1].at_s
    assert metrics.decode_s(decoded) >= 0.049 * len(gaps)


def test_prompts_are_sent_as_ids_with_every_sampling_option_said(engine, serve):
    server = serve()
    built = engine(ddtree=server)
    asked = request(built, temperature=0.7, top_k=5, top_p=0.9, seed=3)
    built.decode("ddtree", asked)
    body = server.seen.bodies[-1]
    assert body["prompt"] == list(asked.prompt_ids) and body["stop_token_ids"] == list(built.end_tokens)
    assert (body["temperature"], body["top_k"], body["top_p"], body["seed"]) == (0.7, 5, 0.9, 3)
    assert (body["repetition_penalty"], body["min_p"], body["max_tokens"]) == (1.0, 0.0, 24)
    built.decode("ddtree", request(built))
    assert "seed" not in server.seen.bodies[-1], "greedy has no seed"


def test_the_end_the_limit_and_the_context(engine, serve, tiny):
    server = serve("baseline", max_model_len=None)
    built = engine(baseline=server)
    truth = tiny.decoders["baseline"](request(built))
    assert built.decode("baseline", request(built)).finish_reason == truth.finish_reason
    small = serve("baseline", max_model_len=len(request(built).prompt_ids) + 3)
    built = engine(baseline=small)
    decoded = built.decode("baseline", request(built))
    assert (len(decoded.tokens), decoded.finish_reason, built.context_length) == (3, "context", small.behaviour.max_model_len)
    with pytest.raises(UserError, match="leaves no room"):
        built.decode("baseline", request(built, "the cat sat on the mat and the hat"))


def test_a_server_without_ids_is_counted_by_its_usage_and_compared_as_text(harness, serve, tiny):  # noqa: F811
    servers = {"baseline": serve("baseline", ids=False, metrics=False), "ddtree": serve("ddtree")}
    status, out, err = harness(*WHOLE, f"model.path={tiny.folder}", "engine=openai", arms(**servers))
    assert status == 0, err
    run = package.load(last_line(out)["run"])
    assert run.summary["strategies"]["ddtree"]["identical"] == 1
    assert run.summary["strategies"]["baseline"]["acceptance_length"] is None
    assert run.environment["engine"]["servers"]["ddtree"]["counts"] == "usage", "all arms are counted alike"
    assert set(run.cells.output_tokens) <= set(range(1, 13)) and run.cells.repeated_4grams.isna().all()
    assert "sends no token ids" in out and "counts no rounds" in out
    assert run.summary["strategies"]["baseline"]["chunk_tokens"] is None


def test_a_server_with_chat_alone_gets_messages(engine, serve):
    server = serve("baseline", completions=False)
    built = engine(baseline=server)
    decoded = built.decode("baseline", request(built))
    body = server.seen.bodies[-1]
    assert body["messages"] == [{"role": "user", "content": "the cat sat on the mat"}] and "prompt" not in body
    assert decoded.tokens == () and decoded.output_tokens == len(server.decode(request(built)).tokens)
    assert decoded.drafting.rounds == decoded.output_tokens - 1
    about = built.settings()["servers"]["baseline"]
    assert about["prompts"].startswith("messages") and about["probe_prompt_tokens"]["sent"] == about["probe_prompt_tokens"]["read"]
    assert any("prompts are sent as messages" in line for line in built.remarks())
    with pytest.raises(UserError, match="sampling.top_k=4"):
        built.decode("baseline", request(built, top_k=4))


def test_acceptance_is_missing_where_others_use_the_server(engine, serve):
    server = serve(count_others=3)
    built = engine(ddtree=server)
    decoded = built.decode("ddtree", request(built))
    assert decoded.drafting is None and metrics.acceptance_committed(decoded) is None
    assert "ddtree: acceptance is missing where others used its server too" in built.remarks()


def test_without_its_package_the_engine_says_what_to_install(engine, serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UserError, match=r"pip install 'draft-harness\[openai\]'"):
        engine(ddtree=serve())


def test_prefix_caching_is_told(engine, serve):
    assert any("prefix caching is on" in line for line in engine(ddtree=serve(prefix_caching=True)).remarks())


@pytest.mark.parametrize(
    "behaviour, kind, words",
    [
        (dict(status=500), "HttpStatus", "HTTP 500"),
        (dict(status=429), "HttpStatus", "HTTP 429"),
        (dict(cut_after=2), "StreamCut", "the stream ended after"),
        (dict(error_after=1), "ServerFailed", "the engine died"),
        (dict(silent=True), "NoAnswerInTime", "within 0.5 s"),
    ],
)
def test_a_failure_is_a_row_with_its_reason(harness, serve, tiny, behaviour, kind, words):  # noqa: F811
    server = serve("baseline", bad_from=3, **behaviour)  # the probe, the warm-up, and one good cell come before
    common = [*WHOLE, f"model.path={tiny.folder}", "engine=openai", "strategy=baseline", "engine.timeout_s=0.5"]
    status, out, err = harness(*common, f"engine.base_url={server.url}")
    assert status == 0, err
    cells = package.load(last_line(out)["run"]).cells
    assert cells.failure.tolist()[1:] == [kind] * 2 and all(words in m and "\n" not in m for m in cells.failure_message[1:])
    assert f"failed 2 times: {kind}" in out


def test_an_answer_that_contradicts_itself_is_a_failure(engine, serve):
    server = serve()
    built = engine(ddtree=server)
    server.behaviour.usage_off_by = 1
    with pytest.raises(Exception, match="counted 25 tokens and sent 24"):
        built.decode("ddtree", request(built))
    server.behaviour.usage_off_by, server.behaviour.finish = 0, "abort"
    with pytest.raises(Exception, match="the reason abort"):
        built.decode("ddtree", request(built))


def test_a_server_that_goes_away_fails_the_cells_that_are_left(engine, serve):
    server = serve()
    built = engine(ddtree=server)
    server.stop()
    with pytest.raises(Exception) as caught:
        built.decode("ddtree", request(built))
    assert type(caught.value).__name__ == "NoConnection" and "\n" not in str(caught.value)


def test_the_key_comes_from_the_environment_and_is_stored_nowhere(harness, serve, tiny, monkeypatch):  # noqa: F811
    server = serve("baseline", key="sk-very-secret")
    common = [*WHOLE, f"model.path={tiny.folder}", "engine=openai", "strategy=baseline", f"engine.base_url={server.url}"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    status, _, err = harness(*common)
    assert status == 2 and "OPENAI_API_KEY" in err and len(err.splitlines()) == 1
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    status, out, err = harness(*common)
    assert status == 0, err
    files = [file for file in Path(last_line(out)["run"]).iterdir() if file.is_file()]
    assert files and not any(b"very-secret" in file.read_bytes() for file in files) and "very-secret" not in out + err


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(
    "options, words",
    [
        (["engine.base_url=http://127.0.0.1:{port}"], ["http://127.0.0.1:{port}", "nothing answers there", "start the server"]),
        ([], ["engine.base_url=null", "http://HOST:PORT"]),
        (["engine.base_url=localhost:8000"], ["engine.base_url=localhost:8000", "is no address"]),
        (["engine.base_url=http://me:secret@host:1"], ["...@host", "OPENAI_API_KEY"]),
        (["engine.base_url={{nobody: 'http://a:1'}}"], ["nobody", "no such arm"]),
        (["engine.base_url={{baseline: 'http://a:1'}}", "strategy=dflash"], ["no address for strategy=dflash"]),
        (["arms=null"], ["arms=null"]),
        (["engine.timeout_s=0"], ["engine.timeout_s=0"]),
        (["+engine.warp=1"], ["engine.warp", "timeout_s"]),
        (["measure.concurrency=0"], ["measure.concurrency=0", "1 or more"]),
        (["measure.rate=-1"], ["measure.rate=-1"]),
        (["measure.rate=2", "measure.concurrency=2"], ["measure.rate=2", "one of the two"]),
        (["measure.rate=2", "suite.history=baseline", "engine=torch"], ["suite.history=baseline"]),
    ],
)
def test_wrong_options_get_one_line(harness, tiny, options, words):  # noqa: F811
    port = free_port()
    given = [option.format(port=port) for option in options]
    status, out, err = harness(*WHOLE, f"model.path={tiny.folder}", "engine=openai", "strategy=baseline", *given)
    assert status == 2 and out == "" and len(err.splitlines()) == 1, err
    assert all(word.format(port=port) in err for word in words) and "secret" not in err, err


@pytest.mark.parametrize(
    "behaviour, options, words",
    [
        (dict(models=("a", "b")), {}, ["serves a, b"]),
        (dict(models=("a",)), {"served_model": "c"}, ["served_model=c", "serves a"]),
        (dict(bad_from=0, status=500), {}, ["fails at its first request", "HTTP 500"]),
        (dict(bad_from=0, status=422), {}, ["in no way that can be measured", "/v1/chat/completions: HTTP 422"]),
        (dict(bad_from=0, error_after=0), {}, ["in no way that can be measured", "the engine died"]),
        (dict(bad_from=0, cut_after=1), {}, ["fails at its first request", "stream ended"]),
    ],
)
def test_a_server_that_cannot_be_measured_is_found_before_anything_is(engine, serve, behaviour, options, words):
    with pytest.raises(UserError) as caught:
        engine(options, ddtree=serve(**behaviour))
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value), caught.value


def test_the_command_is_stored_with_the_address(harness, serve, tiny):  # noqa: F811
    server = serve("baseline")
    _, out, _ = harness(*WHOLE, f"model.path={tiny.folder}", "engine=openai", "strategy=baseline", f"engine.base_url={server.url}")
    config = Path(last_line(out)["run"], "config.yaml").read_text()
    assert server.url in config and json.loads(Path(last_line(out)["run"], "summary.json").read_text())["order"].startswith("one request")


@pytest.mark.parametrize("load", [["measure.concurrency=4"], ["measure.rate=40"]])
def test_a_load_over_http_gives_the_same_answers_and_the_same_acceptance(harness, serve, tiny, load):  # noqa: F811
    servers = {name: serve(name, gap_s=0.01) for name in ("baseline", "ddtree")}
    common = [f"model.path={tiny.folder}", "engine=openai", arms(**servers), "suite.limit=8"]
    status, out, err = harness(*WHOLE[1:], *common, *load, "measure.repetitions=2")
    assert status == 0, err
    run = package.load(last_line(out)["run"])
    assert run.cells.failure.isna().all() and len(run.cells) == 32
    assert run.summary["strategies"]["ddtree"]["identical"] == 1
    rounds = accepted = 0
    for body in servers["ddtree"].seen.bodies:
        if body["max_tokens"] == 12 and tuple(body["prompt"]) in asked_in(run, tiny):
            truth = tiny.decoders["ddtree"](Request(tuple(body["prompt"]), tuple(body["stop_token_ids"]), Sampling(max_new_tokens=12)))
            rounds, accepted = rounds + len(truth.rounds), accepted + sum(r.accepted for r in truth.rounds)
    figures = run.summary["strategies"]["ddtree"]
    assert figures["rounds"] == rounds and figures["acceptance_length_verified"] == pytest.approx(1 + accepted / rounds)
    assert figures["acceptance_length_verified"] > 2 and figures["chunk_tokens"] > 1.5
    if "measure.concurrency=4" in load:
        assert servers["ddtree"].seen.most == 4 and figures["in_flight_max"] <= 4 and figures["in_flight_mean"] > 2


def asked_in(run, tiny) -> set[tuple[int, ...]]:
    """The measured prompts, so that warm-up and probe are left out."""
    from harness.suites import SuiteConfig, load

    suite = load(SuiteConfig(limit=8, max_turns=1))
    return {tuple(tiny.vocabulary.tokenizer.render([{"role": "user", "content": row.turns[0]}])) for row in suite.rows}


def test_a_cancelled_request_ends_at_the_server(engine, serve):
    server = serve(gap_s=0.2)
    built = engine(ddtree=server)
    work = built._servers["ddtree"]
    asking = threading.Thread(target=lambda: pytest.raises(Exception, work.ask, request(built), 24), daemon=True)
    asking.start()
    wait_for(lambda: server.seen.now == 1)
    built._client.close()
    wait_for(lambda: server.seen.now == 0)
    assert server.seen.gone == 1


def wait_for(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
