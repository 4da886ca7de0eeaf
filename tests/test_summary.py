"""From cells to figures, table and plot."""

import io

import pytest
from fake_engine import fake_decoded
from rich.console import Console

from harness.plot import draw
from harness.records import Decoded
from harness.store import Cell, Failure, Key
from harness.summary import HEADLINE, headline, summarise
from harness.table import COLUMNS, markdown, meanings, terminal_table


def cell(prompt: str, strategy: str, tokens=(1, 2, 3, 4, 5), a_round: int = 1, turn: int = 0, **changes) -> Cell:
    defaults = dict(decoded=fake_decoded(tokens, a_round), host_peak_bytes=10, device_peak_bytes=1)
    return Cell(Key(prompt, turn, strategy, 0), "chat", 0, **{**defaults, **changes})


def failed(prompt: str, strategy: str) -> Cell:
    return cell(prompt, strategy, decoded=None, failure=Failure("E", "why"))


CELLS = [
    *(cell(p, "baseline") for p in "abc"),
    *(cell(p, "ddtree", a_round=2) for p in "ab"),
    failed("c", "ddtree"),
]


def test_headline_of_a_hand_made_run():
    found = headline(summarise(CELLS, ["baseline", "ddtree"], "baseline", 0))
    assert list(found) == ["baseline", "ddtree"] and tuple(found["ddtree"]) == HEADLINE
    assert found["baseline"]["speedup"] == [1.0, 1.0, 1.0] and found["baseline"]["identical"] == 1.0
    ddtree = found["ddtree"]
    assert ddtree["decode_tokens_per_s"] == pytest.approx(200)
    assert ddtree["speedup"] == pytest.approx([2, 2, 2])
    assert (ddtree["acceptance_length"], ddtree["rounds"], ddtree["peak_memory_bytes"]) == (2, 4, 11)


@pytest.mark.parametrize("junk", ["much", [], 0, None, {}])
def test_a_plugins_odd_setting_gives_no_bandwidth_use(junk):
    settings = {"weight_bytes": 1000, "cache_bytes_per_token": junk, "copy_bytes_per_s": 4000}
    assert summarise(CELLS, ["baseline"], "baseline", 0, settings)["baseline"]["bandwidth_use"] is None


def test_bandwidth_use_needs_an_engine_that_says_what_it_moves():
    settings = {"weight_bytes": 1000, "cache_bytes_per_token": 10, "copy_bytes_per_s": 400_000}
    found = summarise(CELLS, ["baseline", "ddtree"], "baseline", 0, settings)
    # The baseline's four rounds of 10 ms move the weights and a cache of 0, 1, 2 and 3 tokens.
    assert found["baseline"]["bandwidth_use"] == pytest.approx((4000 + 60) / 0.04 / 400_000)
    assert summarise(CELLS, ["ddtree"], None, 0, {"weight_bytes": 1000})["ddtree"]["bandwidth_use"] is None


def test_cells_under_throttling_are_counted():
    cells = [cell("a", "baseline", throttled=True), cell("b", "baseline", throttled=None)]
    assert summarise(cells, ["baseline"], "baseline", 0)["baseline"]["throttled"] == 1


def test_one_wrong_token_is_seen():
    cells = [*CELLS[:3], cell("a", "mtp"), cell("b", "mtp", tokens=(1, 2, 3, 4, 6))]
    assert summarise(cells, ["baseline", "mtp"], "baseline", 0)["mtp"]["identical"] == 0.5


def test_pairs_are_of_one_prompt_and_one_turn():
    cells = [cell("a", "baseline", turn=1), cell("a", "mtp"), cell("b", "mtp", turn=1)]
    found = summarise(cells, ["baseline", "mtp"], "baseline", 0)["mtp"]
    assert found["speedup"] is None and found["identical"] is None


ONE_TOKEN = [cell("a", name, tokens=(7,)) for name in ("baseline", "mtp")]


@pytest.mark.parametrize("cells", [[], [failed("a", "baseline"), failed("a", "mtp")], ONE_TOKEN, CELLS])
@pytest.mark.parametrize("baseline", ["baseline", None])
def test_every_run_has_a_table_and_a_plot(cells, baseline):
    summary = summarise(cells, ["baseline", "mtp", "ddtree"], baseline, 0)
    text = markdown(summary, "title", ["a note"])
    assert text.count("\n| ") == 5 and "a note" in text
    assert len(meanings()) == len(COLUMNS)
    picture = draw(summary, {c.key.prompt: c.category for c in cells}, "title")
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_answers_that_came_in_one_piece_have_no_speed_and_still_a_plot():
    at_once = [cell(p, "baseline", decoded=Decoded((1, 2, 3), "length", 0.1, 0.1)) for p in "ab"]
    summary = summarise(at_once, ["baseline"], "baseline", 0)
    assert summary["baseline"]["decode_tokens_per_s"] is None
    assert draw(summary, {c.key.prompt: c.category for c in at_once}, "title").startswith(b"\x89PNG")


def test_99_97_percent_is_not_written_as_100():
    identical = next(column for column in COLUMNS if column.title == "identical")
    assert [identical.cell({"identical": s}) for s in (1, 0.9997, 0.0001, 0, None)] == ["100", "99.9", "0.1", "0", "–"]


def test_brackets_in_names_are_text():
    summary = summarise([cell("a", "[/b]", decoded=fake_decoded(range(9)))], ["[/b]"], None, 0)
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal_table(summary, "model [/c] [bold]", 120))
    assert "model [/c] [bold]" in console.file.getvalue() and "[/b] " in console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_cuts_no_figure(width):
    cells = [
        cell(p, s, a_round=n, decoded=fake_decoded(range(9), n, round_s=0.01 * (1 + i / 9)))
        for i, p in enumerate("abcdef")
        for s, n in (("baseline", 1), ("ddtree", 2))
    ]
    summary = summarise(cells, ["baseline", "ddtree"], "baseline", 0)
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal_table(summary, "title", width))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 5 and "…" not in "".join(lines)
    assert ("memory" in lines[1]) == (width > 100) and "2.00×" in lines[4]
