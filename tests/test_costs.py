"""What rounds are measured to cost: once for each batch size and context, of the sizes that can pay, on the rounds themselves."""

import pytest
import torch
from tiny_decoding import drafter_config, shaken, tiny_config, tiny_target

from harness.engines.torch import costs
from harness.engines.torch.costs import RoundCosts
from harness.engines.torch.engine import target_view
from harness.engines.torch.rounds import Rounds
from harness.records import Request, Sampling
from strategies.ddtree.proposer import AUTO, LADDER, TreeProposer
from strategies.dflash.checkpoint import new_drafter


@pytest.fixture(scope="module")
def model():
    return tiny_target(tiny_config(context_length=2000), seed=5)


@pytest.fixture
def proposer(model):
    return TreeProposer(shaken(new_drafter(drafter_config(model)), 1), target_view(model), AUTO)


@pytest.fixture
def clock(monkeypatch):
    """A clock for which a draft takes ``draft`` and a verification ``verify[rows]`` seconds; ``seen`` is what was timed."""

    class Clock:
        draft, verify, seen = 0.5, {rows: 1.0 for rows in LADDER}, []

        def timed(self, work, device):
            calls, lengths = [], []
            with pytest.MonkeyPatch.context() as patch:
                verify, draft = Rounds.verify, Rounds.draft
                patch.setattr(Rounds, "verify", lambda self, rows: (calls.append(rows), verify(self, rows))[1])
                patch.setattr(Rounds, "draft", lambda self: (lengths.extend(self.cache.lengths.tolist()), calls.append(0), draft(self))[2])
                work()
            assert len(calls) == 1
            self.seen.append(calls[0])
            return self.verify[calls[0]] if calls[0] else self.draft

    found = Clock()
    found.seen = []
    monkeypatch.setattr(costs, "seconds_of", found.timed)
    monkeypatch.setattr(costs, "_ENOUGH_S", 1e9)
    return found


def asked(batch: int, tokens: int) -> list[Request]:
    return [Request((5, 6, 7), (), Sampling(max_new_tokens=tokens))] * batch


def test_a_batch_size_is_measured_once(model, proposer, clock):
    known = RoundCosts(model)
    first = known.table("ddtree", proposer, asked(1, 20))
    assert first.batch == 1 and first.contexts == (256,) and first.rows == LADDER
    assert first.draft_s == (0.5,) and first.verify_s == ((1.0,) * len(LADDER),)
    assert clock.seen == [size for size in (0, *LADDER) for _ in range(4)], "a first time, and three that count"
    clock.seen.clear()
    assert known.table("ddtree", proposer, asked(1, 240)) is first and clock.seen == []
    assert known.table("ddtree", proposer, asked(3, 20)).batch == 3 and clock.seen
    assert [(name, table.batch) for name, table in known.measured] == [("ddtree", 1), ("ddtree", 3)]


def test_longer_requests_add_the_contexts_that_they_reach(model, proposer, clock):
    known = RoundCosts(model)
    clock.verify = {rows: 1.0 if rows <= 64 else 9.0 for rows in LADDER}
    near = known.table("ddtree", proposer, asked(1, 20))
    assert near.rows == tuple(rows for rows in LADDER if rows <= 64)
    clock.seen.clear()
    clock.draft, clock.verify = 0.75, {4: 2.0, 64: 16.0}
    far = known.table("ddtree", proposer, asked(1, 1500))
    assert far.contexts == (256, 1024, 2000) and far.rows == near.rows
    assert far.draft_s == (0.5, 0.75, 0.75) and far.verify_s[0] == near.verify_s[0]
    assert far.verify_s[1] == far.verify_s[2] == pytest.approx([1.0 + 1 + 14 * (rows - 4) / 60 for rows in near.rows])
    assert set(clock.seen) == {0, 4, 64}
    measured = [(table.contexts, table.rows) for _, table in known.measured]
    assert measured == [((256,), near.rows), ((1024,), (4, 64)), ((2000,), (4, 64))]


def test_the_last_size_costs_a_quarter_more_than_the_first_with_room_for_a_path(model, proposer, clock):
    """Paths have up to 5 rows here, so 8 rows are the first with room. A round of them takes 10, so 12.5 are the most."""
    clock.draft, clock.verify = 6.0, {4: 1e-3, 8: 4.0, 12: 4.5, 16: 6.5, 24: 6.6, 32: 6.0, 48: 99.0, 64: 99.0}
    assert RoundCosts(model).table("ddtree", proposer, asked(1, 20)).rows == (4, 8, 12, 16)
    assert clock.seen == [size for size in (0, 4, 8, 12, 16, 24, 0) for _ in range(4)], "the draft again, when it grows less"
    clock.draft = 0.0
    assert RoundCosts(model).table("ddtree", proposer, asked(1, 20)).rows == (4, 8, 12)


@torch.inference_mode()
def test_what_is_too_dear_is_not_grown(model, proposer, clock):
    def grown(costs):
        rounds = Rounds(model, proposer, 1, 400, False, costs)
        rounds.begin([[5, 6, 7]], Sampling(), [0])
        rounds.step()
        assert rounds.report[0, 1] + 1 == rounds.size.picked()
        return rounds._tree.rows

    clock.verify = {rows: 1.0 if rows <= 24 else 9.0 for rows in LADDER}
    known = RoundCosts(model)
    short = known.table("ddtree", proposer, asked(1, 20))
    assert grown(None) == 128 and grown(short) == 24
    clock.verify = dict.fromkeys(LADDER, 1.0)
    assert grown(known.table("ddtree", proposer, asked(2, 20))) == 128, "another batch size has a table of its own"


def test_what_is_timed_is_a_round_behind_that_context(model, proposer, monkeypatch):
    """The real clock; every draft and verification stands behind as many positions as the table says."""
    stood = []
    verify, draft = Rounds.verify, Rounds.draft

    def watched(work):
        def run(self, *rows):
            stood.append((self.batch, *self.cache.lengths.tolist()))
            work(self, *rows)

        return run

    monkeypatch.setattr(Rounds, "verify", watched(verify))
    monkeypatch.setattr(Rounds, "draft", watched(draft))
    table = RoundCosts(model).table("ddtree", proposer, asked(2, 300))
    assert set(stood) == {(2, 256, 256), (2, 1024, 1024)}
    assert all(0 < seconds < 5 for row in (table.draft_s, *table.verify_s) for seconds in row)


@torch.inference_mode()
def test_measuring_leaves_the_proposers_own_state_alone(model, proposer):
    """Requests of another batch size may be under way: their context cache is theirs."""
    proposer.reset(1, 64)
    kept = proposer._cache
    kept.fill_(7.0)
    RoundCosts(model).table("ddtree", proposer, asked(2, 20))
    assert proposer._cache is kept and bool((kept == 7.0).all())
