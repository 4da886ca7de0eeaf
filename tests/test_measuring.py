"""The order of cells, histories of conversations, and failures that are rows."""

from collections import Counter

from fake_engine import FakeEngine, measure

from harness.measuring import Schedule, warm_up
from harness.records import Sampling
from harness.suites import Row

STRATEGIES = ("baseline", "mtp", "ddtree")
ROWS = [Row(id=f"t/{i}", category="chat", turns=("hello", "and then?")[: 1 + i % 2]) for i in range(8)]


def schedule(**changes) -> Schedule:
    defaults = dict(rows=ROWS, strategies=STRATEGIES, sampling=Sampling(max_new_tokens=4), repetitions=2, seed=0)
    return Schedule(**{**defaults, **changes})


def engine(**options) -> FakeEngine:
    return FakeEngine(None, {name: {} for name in STRATEGIES}, **options)


def test_every_cell_once_and_counted_beforehand():
    cells = measure(engine(), schedule())
    assert len(cells) == schedule().cells == (4 + 4 * 2) * 3 * 2
    assert set(Counter(cell.key for cell in cells).values()) == {1}
    assert [cell.order for cell in cells] == list(range(len(cells)))


def test_strategies_are_interleaved_in_an_order_that_the_seed_decides():
    def order(seed):
        return [cell.key for cell in measure(engine(), schedule(seed=seed))]

    assert order(1) == order(1) != order(2)
    for start in range(0, len(order(1)), 3):
        assert {key.strategy for key in order(1)[start : start + 3]} == set(STRATEGIES)
    assert len({tuple(schedule().order([row], 0)) for row in ROWS}) > 1


def test_a_strategy_answers_after_its_own_answers():
    fake = engine(differs="mtp")
    cells = measure(fake, schedule(rows=ROWS[1:2], repetitions=1))
    texts = {cell.key.strategy: cell.text for cell in cells if cell.key.turn == 0}
    for (_, request), cell in zip(fake.seen, cells):
        own = "hello" if cell.key.turn == 0 else "hello" + texts[cell.key.strategy] + "and then?"
        assert request.prompt_ids == tuple(1 + byte for byte in own.encode())
        assert cell.prompt_tokens == len(own)


def test_repetitions_sample_with_seeds_of_their_own():
    fake = engine()
    measure(fake, schedule(rows=ROWS[:1], repetitions=3))
    assert [request.sampling.seed for _, request in fake.seen] == [0] * 3 + [1] * 3 + [2] * 3


def test_a_failing_cell_is_a_row_and_its_conversation_ends_there():
    cells = measure(engine(broken="mtp"), schedule(rows=ROWS[1:2], repetitions=1))
    first, second = [cell.failure for cell in cells if cell.key.strategy == "mtp"]
    assert (first.kind, first.message) == ("RuntimeError", "a fault over two lines")
    assert second.kind == "TurnBefore"
    assert all(cell.decoded for cell in cells if cell.key.strategy != "mtp")


def test_a_prompt_longer_than_the_context_is_a_failure():
    cells = measure(engine(context_length=8), schedule(rows=ROWS[:2], repetitions=1))
    too_long = [cell for cell in cells if cell.failure]
    assert {cell.key.turn for cell in too_long} == {1}
    assert "does not fit" in too_long[0].failure.message and too_long[0].prompt_tokens > 8


def test_warm_up_decodes_other_prompts_with_every_strategy():
    fake = engine()
    warm_up(fake, schedule(), prompts=2)
    assert Counter(name for name, _ in fake.seen) == {name: 2 for name in STRATEGIES}
    measured = {tuple(fake.render([{"role": "user", "content": turn}])) for row in ROWS for turn in row.turns}
    assert not measured & {request.prompt_ids for _, request in fake.seen}
    warm_up(engine(context_length=2), schedule(), prompts=1)
