"""At temperature 1 every strategy samples exactly the target's distribution, and the test that says so would notice if not.

Four tokens of a vocabulary of eight: 4,096 outcomes, whose exact probabilities come from plain passes over all prefixes.
Pearson's chi-square over outcomes, those expected fewer than five times taken together. Seeds are fixed, so a test gives
the same p every time; for sound code a fresh choice of seeds would fail a test once in 10,000 times.
"""

from collections import Counter
from itertools import product

import pytest
import torch
from naive_sampling import naive_probabilities
from scipy.stats import chisquare
from tiny_decoding import greedy, proposers, run, tiny_config, tiny_target

from harness.engines.torch import rounds
from kernels import SampledChoices, acceptance, draw, probabilities

FALSE_ALARM = 1e-4
SAMPLES = 1200
VOCABULARY, LENGTH, PROMPT = 8, 4, [1, 2, 3]
STRATEGIES = ["baseline", "mtp", "dflash", "ddtree"]
FILTERED = {"temperature": 1.3, "top_k": 5, "top_p": 0.85}


@pytest.fixture(scope="module")
def model():
    """One layer of width 16; of this seed, because its random drafters are accepted often enough for a bias to show."""
    sizes = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=16)
    return tiny_target(tiny_config(**sizes, vocab_size=VOCABULARY, context_length=32), seed=12)


@pytest.fixture(scope="module")
def arms(model, tmp_path_factory):
    sizes = dict(block_size=4, num_attention_heads=2, num_key_value_heads=1)
    return proposers(model, tmp_path_factory.mktemp("drafters"), k=3, budget=6, **sizes)


@torch.no_grad()
def exact(model, temperature=1.0, top_k=0, top_p=1.0) -> dict[tuple[int, ...], float]:
    """The probability of every outcome."""
    outcomes = {(): 1.0}
    for length in range(LENGTH):
        prefixes = list(outcomes)
        ids = torch.tensor([PROMPT + list(prefix) for prefix in prefixes])
        logits = model.logits(model(ids, torch.arange(len(PROMPT) + length).expand_as(ids))[0][:, -1])
        rows = [naive_probabilities(row, temperature, top_k, top_p) for row in logits.tolist()]
        outcomes = {
            (*prefix, token): outcomes[prefix] * chance
            for prefix, row in zip(prefixes, rows, strict=True)
            for token, chance in enumerate(row)
        }
    return outcomes


def sample(model, proposer, first_seed: int, samples: int = SAMPLES, temperature=1.0, **filters) -> Counter:
    found = Counter()
    for seed in range(first_seed, first_seed + samples):
        found[run(model, proposer, PROMPT, LENGTH, temperature=temperature, seed=seed, **filters).tokens] += 1
    return found


def p_value(found: Counter, outcomes: dict[tuple[int, ...], float]) -> float:
    samples = found.total()
    common = [outcome for outcome, chance in outcomes.items() if chance * samples >= 5]
    observed = [found[outcome] for outcome in common]
    expected = [outcomes[outcome] * samples for outcome in common]
    observed.append(samples - sum(observed))
    expected.append(samples - sum(expected))
    return float(chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_samples_have_the_targets_distribution(model, arms, strategy):
    found = sample(model, arms[strategy], first_seed=100_000 * STRATEGIES.index(strategy))
    assert p_value(found, exact(model)) > FALSE_ALARM


def test_with_temperature_top_k_and_top_p(model, arms):
    outcomes = exact(model, **FILTERED)
    impossible = {outcome for outcome in product(range(VOCABULARY), repeat=LENGTH) if outcomes[outcome] == 0}
    found = sample(model, arms["ddtree"], first_seed=0, **FILTERED)
    assert p_value(found, outcomes) > FALSE_ALARM
    assert len(impossible) > 1000 and not impossible & found.keys()


@pytest.mark.parametrize("filters", [{"temperature": 1.0}, FILTERED], ids=["plain", "filtered"])
def test_equal_seeds_give_equal_samples_in_every_strategy(arms, model, filters):
    """The uniform number of a position is the seed's, so speculation changes no token."""
    accepted = Counter()
    for seed in range(30):
        outputs = {name: run(model, proposer, PROMPT, 12, seed=seed, **filters) for name, proposer in arms.items()}
        assert len({output.tokens for output in outputs.values()}) == 1
        accepted += Counter({name: sum(r.accepted for r in output.rounds) for name, output in outputs.items()})
    assert all(accepted[name] > 10 for name in STRATEGIES[1:]), "drafts are accepted, so this compares something"
    assert greedy(model, PROMPT, 12) == list(run(model, arms["ddtree"], PROMPT, 12).tokens)


class Knowing(SampledChoices):
    """Choices that also tell the distribution they are drawn from."""

    def chances(self, row):
        return probabilities(self._logits[0, row], *self._warp)


def lenient(tokens, parents, choose):
    """Takes a drafted token whenever the target gives it more than 4 %, as "typical acceptance" does."""
    path, tokens, parents = [0], tokens[0].tolist(), parents[0].tolist()
    while True:
        chances = choose.chances(path[-1])
        children = [row for row, parent in enumerate(parents) if parent == path[-1] and chances[tokens[row]] > 0.04]
        if not children:
            return [path], [choose(0, path[-1], len(path) - 1)]
        path.append(children[0])


def second_chance():
    """Where the target's sample is not among the drafted tokens, the bonus token is drawn anew with another number."""
    generator = torch.Generator().manual_seed(12345)

    def accept(tokens, parents, choose):
        path, tokens, parents = [0], tokens[0].tolist(), parents[0].tolist()
        while True:
            token = choose(0, path[-1], len(path) - 1)
            children = [row for row, parent in enumerate(parents) if parent == path[-1] and tokens[row] == token]
            if not children:
                break
            path.append(children[0])
        if path[-1] in parents:
            uniform = torch.rand((), dtype=torch.float64, generator=generator)
            token = int(draw(choose.chances(path[-1]), uniform))
        return [path], [token]

    return accept


BIASES = [("mtp", "lenient"), ("dflash", "lenient"), ("ddtree", "lenient"), ("dflash", "second chance"), ("ddtree", "second chance")]


@pytest.mark.parametrize("strategy, bias", BIASES)
def test_biased_acceptance_is_found_out(model, arms, strategy, bias, monkeypatch):
    monkeypatch.setattr(rounds, "SampledChoices", Knowing)
    monkeypatch.setattr(acceptance, "accept", lenient if bias == "lenient" else second_chance())
    found = sample(model, arms[strategy], first_seed=0, samples=800)
    assert p_value(found, exact(model)) < FALSE_ALARM
