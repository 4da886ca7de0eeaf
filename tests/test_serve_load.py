"""The load script against the tests' own server, so that its verdicts are known to be able to fail."""

import json
import sys

import pytest
from test_openai_engine import serve, tiny  # noqa: F401  (fixtures)

from benchmarks import serve_load


@pytest.fixture
def load(serve, tiny, tmp_path, monkeypatch, capsys):  # noqa: F811
    """``load(**behaviour of the served strategy's server)`` gives exit status and report."""
    monkeypatch.setattr(serve_load, "SETTLED_S", 1)

    def call(change=None, **behaviour):
        plain, served = serve("baseline"), serve("ddtree", gap_s=0.05, **behaviour)
        if change:
            change(served)
        file = tmp_path / "load.json"
        words = ["--served-as", "a tree", "--baseline", plain.url, "--served", served.url, "--model", tiny.folder, "--output", file, "--suites", "quick",
                 "--requests", 24, "--concurrency", 6, "--cancelled", 5, "--max-new-tokens", 24]  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["serve_load", *map(str, words)])
        status = serve_load.main()
        captured = capsys.readouterr()
        return status, json.loads(file.read_text()) if file.exists() else captured.err

    return call


def test_a_server_that_does_everything_right_passes(load):
    status, report = load()
    assert status == 0 and all(report["holds"].values()), report["holds"]
    assert report["answers"]["requests"] == 24 and report["answers"]["identical"] == report["answers"]["compared"] == 19
    assert report["served_as"] == "a tree"
    assert report["counted_by_the_server"]["accepted"] > 0
    # A place is taken again at once, and of the 5 that left the server may not have heard yet.
    assert report["most_during_the_load"]["num_requests_running"] <= 6 + 5


def wrong_now_and_then(server) -> None:
    right, calls = server.decode, []

    def decode(asked):
        calls.append(asked)
        found = right(asked)
        return found if not 7 <= len(calls) < 13 else type(found)(**{**vars(found), "tokens": (*found.tokens[:-1], 5)})

    server.decode = decode


@pytest.mark.parametrize(
    "behaviour, broken",
    [
        (dict(change=wrong_now_and_then), "every_other_answer_equals_the_baselines"),
        (dict(leaks=True), "no_request_and_no_cache_block_is_left"),
        (dict(bad_from=20, status=500), "server_answers_afterwards"),
    ],
)
def test_what_does_not_hold_is_named(load, behaviour, broken):
    status, report = load(**behaviour)
    assert status == 1 and not report["holds"][broken], report["holds"]


def test_a_server_without_ids_is_refused(load):
    status, told = load(ids=False)
    assert status == 2 and "must send token ids" in told
