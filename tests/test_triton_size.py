"""The size of a round's trees, picked by Triton's kernel, promises as many tokens a second as the reference's pick."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE

from kernels import size as references
from kernels.triton_kernels import size as kernels

COST = st.floats(1e-4, 10.0)


def chosen(pick, logprobs, lengths, rows, contexts, round_s, device) -> int:
    picked = torch.full((1,), -7, device=device)
    on_device = (torch.tensor(lengths), torch.tensor(rows), torch.tensor(contexts, dtype=torch.float64), torch.tensor(round_s, dtype=torch.float64))
    pick(logprobs.to(device), *(each.to(device) for each in on_device), picked)
    return int(picked)


def promise(column, logprobs, lengths, rows, contexts, round_s) -> float:
    tokens = float(logprobs[:, : rows[column]].double().exp().sum())
    costs = references._cost(torch.tensor(lengths), torch.tensor(contexts, dtype=torch.float64), torch.tensor(round_s, dtype=torch.float64))
    return tokens / float(costs[column])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_pick_promises_what_the_references_does(data):
    batch, most = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 130))
    rows = sorted(data.draw(st.sets(st.integers(1, 140), min_size=1, max_size=10)))
    contexts = sorted(data.draw(st.sets(st.integers(1, 5000), min_size=1, max_size=4)))
    round_s = [[data.draw(COST) for _ in rows] for _ in contexts]
    lengths = data.draw(st.lists(st.integers(0, 6000), min_size=batch, max_size=batch))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    logprobs = -torch.rand(batch, most, generator=generator).mul(9).sort(dim=1)[0]
    logprobs[:, 0] = 0
    asked = logprobs, lengths, rows, contexts, round_s
    ours, theirs = chosen(kernels.pick_size, *asked, DEVICE), chosen(references.pick_size, *asked, "cpu")
    assert promise(ours, *asked) == pytest.approx(promise(theirs, *asked), rel=1e-6)


@pytest.mark.parametrize("length, expected", [(0, 2), (256, 2), (640, 1), (1024, 0), (9000, 0)])
def test_costs_between_two_contexts_are_between_theirs(length, expected):
    """Rows that cost the same near and as much as they are many far: large trees near, small ones far."""
    logprobs = torch.log(torch.tensor([[1.0, 0.9, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]]))
    asked = logprobs, [length], [1, 2, 8], [256, 1024], [[1.0, 1.0, 1.0], [1.0, 2.0, 8.0]]
    assert chosen(kernels.pick_size, *asked, DEVICE) == chosen(references.pick_size, *asked, "cpu") == expected
