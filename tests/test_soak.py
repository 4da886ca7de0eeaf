"""The soak's figures, worked out by hand, and pieces that add up."""

import pytest

from benchmarks import soak


@pytest.mark.parametrize("values, tolerance, wanted", [
    ([5, 7, 6, 7, 5, 6, 7, 6], 0, True),
    ([5, 7, 6, 7, 5, 6, 8, 6], 0, False),  # higher in the last quarter than in the first
    ([5, 7, 9, 9, 9, 9, 6, 6], 0, True),  # higher between, and given back
    ([100, 100, 100, 100, 100, 100, 101, 101], 0.01, True),
    ([100, 100, 100, 100, 100, 100, 101, 102], 0.01, False),
    ([5], 0, True),
    ([5, 6], 0, False),
])  # fmt: skip
def test_flat_is_a_last_quarter_not_above_the_first(values, tolerance, wanted):
    assert soak.flat(values, tolerance) is wanted


def test_slope_first_and_excursion_of_each_series():
    found = soak.figures({"at_s": [0, 30, 60, 90], "allocated": [10, 10, 10, 10], "resident": [100, 101, 102, 103], "used": [4, 1, 5, 4]})
    assert found["allocated"] == {"slope_a_minute": 0, "first": 10, "largest_excursion": 0, "flat": True}
    assert found["resident"] == {"slope_a_minute": pytest.approx(2), "first": 100, "largest_excursion": 3, "flat": False}
    assert (found["used"]["largest_excursion"], found["used"]["flat"]) == (-3, True)
    assert soak.slope([1], [7]) == 0


def test_the_device_decides_where_there_is_one_and_every_piece_counts():
    def piece(**flat):
        return {"minutes": 1.5, "decodes": 3, "tokens": 20, "series": {name: {"flat": value} for name, value in flat.items()}}

    good, leaking = piece(allocated=True, reserved=True, resident=False), piece(allocated=True, reserved=False, resident=True)
    whole = soak.together([good, good])
    assert (whole["minutes"], whole["decodes"], whole["tokens"], whole["flat"]) == (3, 6, 40, True)
    assert not soak.together([good, leaking])["flat"] and not soak.together([piece(resident=False)])["flat"]


def test_it_decodes_until_the_time_is_up_and_stores_on_the_way(monkeypatch):
    monkeypatch.setattr(soak, "SAMPLE_S", 0.0)
    monkeypatch.setattr(soak, "WRITE_S", 0.0)
    levels, stored = iter(range(1000, 10**6)), []
    kept = soak.soak(lambda: 5, lambda: {"allocated": next(levels)}, 0.02, lambda told: stored.append(told) or told)
    assert kept is stored[-1] and len(stored) > 2 and stored[0]["decodes"] == 0
    assert kept["tokens"] == 5 * kept["decodes"] and kept["minutes"] >= 0.02 / 60
    assert kept["samples"]["allocated"] == list(range(1000, 1001 + kept["decodes"])) and not kept["series"]["allocated"]["flat"]


def test_resident_memory_is_told_everywhere():
    class Card:
        def used_bytes(self):
            return 7

    assert soak.memory(Card())["resident"] > 10**7
