"""A run's folder keeps what was written to it."""

import json
import math
import zlib
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


@pytest.mark.parametrize("label", ["a/b", "../../up", "x\ny", "a|b c", "ü" * 300])
def test_a_label_stays_within_the_root_and_within_a_name(label, tmp_path):
    folder = Store.create(str(tmp_path / "root"), label, NOW).folder
    assert folder.resolve().parent == tmp_path / "root" and "\n" not in folder.name and " " not in folder.name


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="measure.root"):
        Store.create(str(tmp_path / "file"), "x", NOW)


@pytest.mark.parametrize("text", ["[1, 2]", "3", '{"a": NaN}', '{"a": 1e400}', "{", ""])
def test_a_file_that_holds_no_object_or_no_number_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match="x.json: is damaged"):
        Store(tmp_path).read_json("x.json")


def test_a_line_with_nan_is_refused_though_its_checksum_is_right(tmp_path):
    text = b'{"prompt": "a", "ttft_s": NaN}'
    (tmp_path / CELLS).write_bytes(text[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(text))
    with pytest.raises(UserError, match="NaN is no number"):
        list(Store(tmp_path).cells())


def test_json_has_no_nan():
    assert finite({"a": (math.nan, 1.0), "b": [{"c": -math.inf}]}) == {"a": [None, 1.0], "b": [{"c": None}]}
