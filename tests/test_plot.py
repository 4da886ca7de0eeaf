"""Colours of strategies in pictures; that a plot's legend hides no bar."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from harness import plot
from harness.colours import GREY, OTHERS, SHIPPED, colours


def test_the_shipped_strategies_keep_theirs_whatever_stands_beside_them():
    assert colours(["ddtree_15", "ddtree", "baseline"]) == {"ddtree_15": OTHERS[0], **{n: SHIPPED[n] for n in ("ddtree", "baseline")}}


def test_eight_arms_have_eight_colours():
    assert len(set(colours(["baseline", "mtp", "dflash", "ddtree", *"abcd"]).values())) == 8


def test_a_baseline_of_another_name_is_grey():
    assert colours(["slow", "ddtree"], {"slow"})["slow"] == GREY


def test_more_strategies_than_colours_begin_again():
    assert colours("abcdefghijkl")["h"] == OTHERS[0]


@pytest.mark.parametrize("arms", [1, 3, 7, 10])
def test_the_legend_hides_no_bar(arms):
    summary = {f"arm_{i}": {"accepted_histogram": [3, 9], "acceptance_length": 1.75} for i in range(arms)}
    figure, axes = plt.subplots(figsize=(13 / 3.4, 4.2), layout="constrained")
    plot._draw_accepted(axes, summary, colours(summary))
    figure.canvas.draw()
    lowest = axes.get_legend().get_window_extent().transformed(axes.transData.inverted()).y0
    plt.close(figure)
    assert lowest > np.max([bar.get_height() for bar in axes.patches])
