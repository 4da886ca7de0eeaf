"""A run's folder keeps what was written to it."""

import json
import math
from datetime import datetime

import pytest
from fake_engine import fake_decoded

from harness.errors import UserError
from harness.store import CELLS, Cell, Failure, Key, Store, finite

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_cells_come_back_as_they_were(tmp_path):
    store = Store.create(str(tmp_path / "runs"), "ddtree-torch-m-quick", NOW)
    good = Cell(Key("q/1", 0, "ddtree", 0), "chat", 0, 3, "ab", fake_decoded([1, 2, 3], 2), "text ü", None, 5, 6)
    bad = Cell(Key("q/1", 1, "ddtree", 0), "chat", 1, failure=Failure("UserError", "too long"))
    store.append(good)
    assert len((store.folder / CELLS).read_text().splitlines()) == 1, "a cell is on disk as soon as it is finished"
    store.append(bad)
    assert list(store.cells()) == [good, bad]
    assert store.folder.name == "20260102-030405-ddtree-torch-m-quick"


def test_a_line_says_which_cell_it_is_at_top_level(tmp_path):
    store = Store.create(str(tmp_path), "x", NOW)
    store.append(Cell(Key("q/1", 0, "mtp", 2), "chat", 7, failure=Failure("E", "m")))
    line = json.loads((store.folder / CELLS).read_text())
    assert (line["prompt"], line["turn"], line["strategy"], line["repetition"]) == ("q/1", 0, "mtp", 2)


def test_two_runs_in_one_second_have_two_folders(tmp_path):
    folders = {Store.create(str(tmp_path), "x", NOW).folder for _ in range(3)}
    assert len(folders) == 3


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="measure.root"):
        Store.create(str(tmp_path / "file"), "x", NOW)


def test_json_has_no_nan():
    assert finite({"a": (math.nan, 1.0), "b": [{"c": -math.inf}]}) == {"a": [None, 1.0], "b": [{"c": None}]}
