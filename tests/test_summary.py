"""From cells to figures, table and plot."""

import io
from dataclasses import replace

import pytest
from fake_engine import fake_decoded
from rich.console import Console

from harness.plot import draw
from harness.records import Decoded
from harness.store import Cell, Failure, Key
from harness.summary import HEADLINE, headline, summarise
from harness.table import CATEGORY_COLUMNS, COLUMNS, Further, by_category, markdown, meanings, terminal_table


def cell(prompt: str, strategy: str, tokens=(1, 2, 3, 4, 5), a_round: int = 1, turn: int = 0, **changes) -> Cell:
    defaults = dict(decoded=fake_decoded(tokens, a_round), host_peak_bytes=10, device_peak_bytes=1)
    return Cell(Key(prompt, turn, strategy, 0), changes.pop("category", "chat"), 0, **{**defaults, **changes})


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


# figures of each category

def of_kind(prompt: str, strategy: str, kind: str, tokens: int, a_round: int, round_s: float = 0.01) -> Cell:
    return cell(prompt, strategy, category=kind, decoded=fake_decoded(range(tokens), a_round, round_s=round_s))


MIXED = [
    *(of_kind(p, "baseline", kind, 9, 1) for p, kind in zip("abcd", ("gsm8k", "gsm8k", "mt_bench", "mt_bench"))),
    of_kind("a", "ddtree", "gsm8k", 9, 2), of_kind("b", "ddtree", "gsm8k", 9, 4),
    of_kind("c", "ddtree", "mt_bench", 9, 8), replace(failed("d", "ddtree"), category="mt_bench"),
]  # fmt: skip


def test_each_category_has_figures_of_its_own_with_intervals():
    found = summarise(MIXED, ["baseline", "ddtree"], "baseline", 0)
    maths, chat = found["ddtree"]["by_category"].values()
    assert list(found["ddtree"]["by_category"]) == ["gsm8k", "mt_bench"]
    # a: 8 tokens in 4 rounds, b: 8 in 2; a round takes 10 ms.
    value, low, high = maths["acceptance_length"]
    assert value == pytest.approx(16 / 6) and low < value < high
    assert maths["decode_tokens_per_s"][0] == pytest.approx(16 / 0.06) and maths["round_s"] == pytest.approx([0.01, 0.01, 0.01])
    assert maths["tpot_s"][0] == pytest.approx((0.04 / 8 + 0.02 / 8) / 2) and maths["ttft_s"][0] == pytest.approx(0.1)
    assert maths["speedup"][0] == pytest.approx(8**0.5) and maths["identical"] == 1 and maths["prompts"] == 2
    assert chat["acceptance_length"][0] == pytest.approx(8) and chat["acceptance_length"][1:] == [None, None], "one prompt has no interval"
    assert (chat["cells"], chat["failed"], chat["prompts"]) == (2, 1, 2)
    assert found["baseline"]["by_category"]["gsm8k"]["speedup"] == [1.0, 1.0, 1.0]


def test_a_category_alone_says_what_the_whole_says():
    whole = summarise(CELLS, ["baseline", "ddtree"], "baseline", 0)["ddtree"]
    (only,) = whole["by_category"].values()
    assert only["speedup"] == whole["speedup"] and only["identical"] == whole["identical"]
    assert only["acceptance_length"][0] == pytest.approx(whole["acceptance_length"])
    assert only["decode_tokens_per_s"][0] == pytest.approx(whole["decode_tokens_per_s"])


@pytest.mark.parametrize("cells", [[failed("a", "baseline")], ONE_TOKEN[:1]])
def test_what_a_category_cannot_give_is_none_and_a_dash(cells):
    found = by_category(summarise(cells, ["baseline"], "baseline", 0))
    figures = found["chat · baseline"]
    assert figures["decode_tokens_per_s"] is None and figures["acceptance_length"] is None
    assert [column.cell(figures) for column in CATEGORY_COLUMNS][:1] == ["–"]


def test_the_table_of_categories_has_its_rows_under_the_first():
    summary = summarise(MIXED, ["baseline", "ddtree"], "baseline", 0)
    rows = by_category(summary)
    assert list(rows) == ["gsm8k · baseline", "gsm8k · ddtree", "mt_bench · baseline", "mt_bench · ddtree"]
    text = markdown(summary, "title", [], further=[Further("Each suite by itself", CATEGORY_COLUMNS, rows, "suite · strategy")])
    assert "Each suite by itself." in text and "| gsm8k · ddtree | 266.7 [" in text and "| mt_bench · ddtree | 800.0 | 8.00× |" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_table_too_wide_leaves_its_last_columns_out(width):
    console = Console(file=io.StringIO(), width=width)
    rows = by_category(summarise(MIXED, ["baseline", "ddtree"], "baseline", 0))
    console.print(terminal_table(rows, "title", width, "suite · strategy", CATEGORY_COLUMNS))
    text = console.file.getvalue()
    assert "…" not in text and "266.7 [" in text and max(map(len, text.splitlines())) <= width
    assert ("round\n" in text or "round" in text.splitlines()[1].split()) == (width == 200)
