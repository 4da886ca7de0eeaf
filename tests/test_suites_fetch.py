"""Fetching from a mirror on this machine: right rows are stored, anything else is refused and leaves nothing behind."""

import functools
import http.server
import json
import os
import shutil
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.suites import SUITES, SuiteConfig, load
from harness.suites import fetch as fetching
from harness.suites.__main__ import main
from harness.suites.catalogue import FETCHABLE

REPOSITORY = Path(__file__).parent.parent
FOLDER = Path(os.environ.get("HARNESS_SUITES") or REPOSITORY.parent / "shared" / "suites")


def add(site: Path, name: str, change=lambda data: data) -> None:
    """Put ``name``'s file under ``site`` at the path of its public address."""
    source = FOLDER / FETCHABLE[name].file
    if not source.is_file():
        pytest.skip(f"{source.name} not found; set HARNESS_SUITES to the folder that holds the suites' files")
    target = site / urlsplit(FETCHABLE[name].url).path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(change(source.read_bytes()))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Torn(Quiet):
    """Announces twice the bytes that it sends."""

    def send_header(self, name, value):
        super().send_header(name, str(2 * int(value)) if name == "Content-Length" else value)


@pytest.fixture
def serve(tmp_path):
    """``serve(handler)`` gives the address of a server of the folder ``site``."""
    servers = []
    site = tmp_path / "site"
    site.mkdir()

    def start(handler=Quiet) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=site))
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def command(tmp_path, capsys):
    """``command(*arguments)`` gives exit status, stdout and stderr; the suites' folder is ``tmp_path / "suites"``."""

    def call(*arguments: str):
        status = main([*arguments, "--root", str(tmp_path / "suites")])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def refused(result, *words: str) -> None:
    status, out, err = result
    line = err.splitlines()[-1]
    assert status == 2 and out == "" and line.startswith("harness.suites: "), err
    assert sum(text.startswith("harness.suites:") for text in err.splitlines()) == 1
    assert all(word in line for word in words), line


def left(tmp_path) -> list[str]:
    folder = tmp_path / "suites"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("name", FETCHABLE)
def test_each_file_comes_over_http_with_the_right_rows(name, serve, command, tmp_path):
    add(tmp_path / "site", name)
    mirror = serve()
    status, out, err = command("fetch", name, "--mirror", mirror)
    assert status == 0 and f"{name}: {FETCHABLE[name].rows} rows, checksum right" in out, err
    assert FETCHABLE[name].file in err, "progress"
    assert left(tmp_path) == [FETCHABLE[name].file]
    if name in SUITES:
        assert load(SuiteConfig(name, root=str(tmp_path / "suites"))).total_rows == (SUITES[name].asked or SUITES[name].rows)
    shutil.rmtree(tmp_path / "site")
    assert "there already" in command("fetch", name, "--mirror", mirror)[1], "and is not asked for again"


def test_all_over_a_file_address_then_list_and_verify(command, tmp_path):
    for name in FETCHABLE:
        add(tmp_path / "site", name)
    status, out, _ = command("fetch", "all", "--mirror", f"file://{tmp_path}/site")
    assert status == 0 and out.count("checksum right") == len(FETCHABLE) and "revision needed: aime24" in out
    assert set(left(tmp_path)) == {entry.file for entry in FETCHABLE.values()}
    here = {entry["suite"]: entry["here"] for entry in json.loads(command("list", "--json")[1])}
    assert all(here[name] for name in FETCHABLE) and not here["alpaca"]
    status, out, _ = command("verify", "--json")
    states = {entry["suite"]: (entry["state"], entry["rows"]) for entry in json.loads(out)}
    assert status == 0 and states == {name: ("right", e.rows) for name, e in {**SUITES, **FETCHABLE}.items()}


@pytest.mark.parametrize("name", ["gsm8k", "mbpp", "humaneval"])
@pytest.mark.parametrize("damage", ["altered", "truncated", "empty"])
def test_wrong_bytes_are_refused_and_leave_nothing(name, damage, serve, command, tmp_path):
    def change(data):
        half = len(data) // 2
        altered = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
        return {"altered": altered, "truncated": data[:half], "empty": b""}[damage]

    add(tmp_path / "site", name, change)
    refused(command("fetch", name, "--mirror", serve()), SUITES[name].sha256, "nothing was stored")
    assert left(tmp_path) == []


def test_a_wrong_file_stays_until_a_right_one_comes(serve, command, tmp_path):
    file = tmp_path / "suites" / SUITES["gsm8k"].file
    file.parent.mkdir()
    file.write_text("wrong")
    assert command("verify")[0] == 1
    mirror = serve()
    refused(command("fetch", "gsm8k", "--mirror", mirror), "404")
    assert file.read_text() == "wrong"
    add(tmp_path / "site", "gsm8k")
    assert command("fetch", "gsm8k", "--mirror", mirror)[0] == 0
    assert command("verify")[0] == 0


def test_all_goes_on_after_a_failure_and_says_so(command, tmp_path):
    add(tmp_path / "site", "mt_bench")
    status, out, err = command("fetch", "all", "--mirror", f"file://{tmp_path}/site")
    assert status == 2 and "mt_bench: 80 rows" in out
    assert err.count("harness.suites: ") == len(FETCHABLE) - 1


def test_a_download_that_breaks_off_is_refused(serve, command, tmp_path):
    add(tmp_path / "site", "mt_bench")
    refused(command("fetch", "mt_bench", "--mirror", serve(Torn)), "mt_bench")
    assert left(tmp_path) == []


def test_too_many_bytes_are_not_waited_for(serve, command, tmp_path, monkeypatch):
    add(tmp_path / "site", "gsm8k")
    monkeypatch.setattr(fetching, "_PINNED_LIMIT", 1000)
    refused(command("fetch", "gsm8k", "--mirror", serve()), "this is not the file")
    assert left(tmp_path) == []


def test_no_server_no_answer_and_no_such_address(command, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(fetching, "TIMEOUT_S", 0.2)
        refused(command("fetch", "gsm8k", "--mirror", address), "test.jsonl", "0.2 s")
    refused(command("fetch", "gsm8k", "--mirror", address), "cannot be reached", "--mirror")
    refused(command("fetch", "gsm8k", "--mirror", "ftp://x"), "--mirror ftp://x")


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["fetch", "gsm8k", "--root", str(tmp_path / "file" / "suites")]) == 2
    err = capsys.readouterr().err
    assert "cannot be written" in err and "--root" in err and len(err.splitlines()) == 1


def test_wrong_names_and_options(command):
    refused(command("fetch", "nosuch"), "nosuch", "gsm8k_train", "aime24")
    refused(command("fetch", "quick"), "quick")
    refused(command("fetch", "gsm8k", "--revision", "main"), "--revision")
    refused(command("fetch", "aime24"), "revision needed", "HuggingFaceH4/aime_2024")


def test_the_list_is_a_table_of_every_suite(command):
    out = command("list")[1]
    rows = {line.split()[0]: line for line in out.splitlines() if line[:1].isalpha()}
    for name in ("quick", "gsm8k", "math500", "aime24", "aime25", "humaneval", "mbpp", "livecodebench", "swe_bench_lite"):
        assert name in rows
    assert {"mt_bench", "alpaca", "spec_bench", "gsm8k_train"} <= set(rows)
    assert "257 of 427" in rows["mbpp"] and "revision needed" in rows["alpaca"] and "MIT" in rows["gsm8k"]
    assert SUITES["gsm8k"].sha256[:12] in rows["gsm8k"] and "github.com/openai/grade-school-math" in rows["gsm8k"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "required: COMMAND; see python -m harness.suites --help"),
        (["fetch"], "required: NAME; see python -m harness.suites fetch --help"),
        (["verify", "--root", "nowhere"], "--root nowhere: there is no such folder"),
    ],
)
def test_wrong_usage_is_one_line(arguments, words, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("harness.suites: ") and said.err.count("\n") == 1 and words in said.err


@pytest.mark.parametrize("arguments", [[], ["list"], ["fetch"], ["verify"]])
def test_help_everywhere(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"])
    assert stop.value.code == 0 and "usage:" in capsys.readouterr().out
