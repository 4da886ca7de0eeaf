"""How products are cut: measured where it was measured, by rule elsewhere; what the search for tiles would try."""

import json
from dataclasses import asdict

import pytest
import torch

from kernels.triton_kernels import tiles
from kernels.triton_kernels.tiles import Tile, key, most_stages, row_class, rule_of_thumb, tile

SHAPES = [(6144, 4096, False), (4096, 12288, False), (12288, 4096, True), (576, 576, False), (1536, 576, True), (151936, 4096, False)]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Write measured tiles by name."""

    def write(**found):
        path = tmp_path / "tiles.json"
        path.write_text(json.dumps({"environment": {}, "tiles": {name: {"tile": asdict(cut)} for name, cut in found.items()}}))
        monkeypatch.setattr(tiles, "MEASURED", path)
        tiles.measured.cache_clear()

    yield write
    tiles.measured.cache_clear()


def test_a_measured_tile_goes_before_the_rule(measured):
    cut = Tile(16, 64, 256, split=2)
    measured(**{key(9, 4096, 4096, False): cut})
    assert [tile(rows, 4096, 4096, False, torch.bfloat16) == cut for rows in (1, 9, 16, 17)] == [False, True, True, False]
    by_instruction = Tile(16, 64, 64)
    measured(**{key(4, 4096, 4096, False): by_instruction})
    assert [tile(rows, 4096, 4096, False, torch.bfloat16) == by_instruction for rows in (2, 3, 4, 5)] == [False, True, True, False]
    assert tile(9, 4096, 4096, True, torch.bfloat16) == rule_of_thumb(9, 4096, 4096, True)
    assert tile(9, 4096, 4096, False, torch.float32) == tile(1, 4096, 4096, False, torch.float32), "fp32 is cut alike for all rows"


def test_the_stored_tiles_can_be_read():
    tiles.measured.cache_clear()
    assert all(isinstance(cut, Tile) for cut in tiles.measured().values())


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 17, 64, 65, 128])
@pytest.mark.parametrize("outputs, inputs, gated", SHAPES)
def test_the_rule_covers_the_rows_and_fits_into_shared_memory(outputs, inputs, gated, rows):
    cut = rule_of_thumb(rows, outputs, inputs, gated)
    small = outputs * inputs <= tiles.SMALL
    assert cut.streams == (rows <= (4 if small else 2)) and row_class(rows) >= rows
    assert cut.block_m >= rows or small, "a large matrix is read once"
    if not cut.streams:
        assert 3 <= cut.stages <= most_stages(cut.block_m, cut.block_n, cut.block_k, gated, at_once=1)


def test_an_odd_number_of_inputs_goes_to_the_kernel_that_masks_them():
    assert all(rule_of_thumb(rows, 64, 100, False).block_m == 16 for rows in (1, 2, 3, 4))


def test_up_to_four_rows_are_rounded_up_to_a_power_of_two():
    assert [row_class(rows) for rows in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 16]


def test_few_rows_take_a_measured_tile_of_sixteen_before_the_rule(measured):
    of_4, of_16 = Tile(4, 2, 1024), Tile(16, 64, 128)
    measured(**{key(16, 4096, 4096, False): of_16})
    rule = rule_of_thumb(1, 4096, 4096, False)
    assert [tile(rows, 4096, 4096, False, torch.bfloat16) for rows in (1, 2, 4, 8, 16)] == [rule, *[of_16] * 4]
    measured(**{key(4, 4096, 4096, False): of_4, key(16, 4096, 4096, False): of_16})
    assert [tile(rows, 4096, 4096, False, torch.bfloat16) for rows in (2, 3, 4, 5)] == [of_16, of_4, of_4, of_16]


def test_the_search_lets_the_best_few_of_each_product_meet_again(monkeypatch):
    pytest.importorskip("triton")
    from benchmarks import tune_tiles

    tiles.measured.cache_clear()
    cuts = [Tile(16, 64, 64, stages=stages) for stages in range(3, 12)]
    tried = []

    def seconds(search, name, cut):
        tiles.measured()[name] = cut
        tried.append((name, cut.stages))
        other = tiles.measured()["b" if name == "a" else "a"].stages
        return abs(cut.stages - other) + 0.1 * cut.stages

    monkeypatch.setattr(tune_tiles.Search, "_seconds", seconds)
    search = tune_tiles.Search(None, torch.device("cpu"), {"a": cuts, "b": cuts[4:]})
    search.run()
    assert (search.best["a"].stages, search.best["b"].stages) == (7, 7)
    assert [name for name, _ in tried] == ["a"] * 9 + ["b"] * 5 + ["a"] * 5 + ["b"] * 5
    assert tiles.measured()["a"] == search.best["a"]
    tiles.measured.cache_clear()


def test_what_is_loaded_early_leaves_room_for_fewer_blocks():
    assert most_stages(16, 64, 128, False, 2) == 5 and most_stages(16, 64, 128, False, 2, early=256) == 3


@pytest.mark.parametrize("rows", [1, 2, 4, 16, 128])
@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down", "head"])
def test_the_search_tries_what_is_used_the_rule_and_others_once_each(name, rows):
    pytest.importorskip("triton")
    from benchmarks.products import products
    from benchmarks.round_cost import SHAPES
    from benchmarks.tune_tiles import candidates

    for shape in ("qwen3-8b", "smollm2-135m"):
        of = products(SHAPES[shape][0])[name]
        tried, size = candidates(of, rows), (of.outputs, of.inputs, of.gated)
        assert tried[0] == tile(rows, *size, torch.bfloat16) and rule_of_thumb(rows, *size) in tried and 1 < len(tried) == len(set(tried)) < 200
        assert all(cut.split == 1 or -(-of.inputs // cut.block_k) % cut.split == 0 for cut in tried), "no part is empty"
        if rows in (2, 4):
            kinds = {cut.block_m for cut in tried}
            assert kinds == {rows, 16} and tile(16, *size, torch.bfloat16) in tried and len(tried) <= 40


def test_the_search_tries_itself_without_a_gpu_and_leaves_the_kernels_own_file_alone(monkeypatch, tmp_path, capsys, measured):
    pytest.importorskip("triton")
    from benchmarks import tune_tiles

    measured(**{key(9, 4096, 4096, False): Tile(16, 64, 256)})
    before = tiles.MEASURED.read_bytes()
    for options in ([], ["--output", str(tmp_path / "found.json")]):
        monkeypatch.setattr("sys.argv", ["tune_tiles", "--tiny", *options])
        assert tune_tiles.main() == 0 and tiles.MEASURED.read_bytes() == before
    found = json.loads((tmp_path / "found.json").read_text())["tiles"]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == found.keys() and len(found) == 15


@pytest.mark.parametrize("options", [["--shapes", "llama"], ["--rows", "0"], ["--rows", "129"], ["--rows", "1,x"]])
def test_what_the_search_cannot_be_asked_is_named(monkeypatch, capsys, options):
    pytest.importorskip("triton")
    from benchmarks import tune_tiles

    monkeypatch.setattr(tune_tiles, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("sys.argv", ["tune_tiles", *options])
    with pytest.raises(SystemExit):
        tune_tiles.main()
    assert f"{options[0]} {options[1].removeprefix('1,')}: " in capsys.readouterr().err
