"""Our logits are Transformers' logits, in fp32, to a relative error of 1e-4."""

import pytest
import torch
from reference_models import relative_error
from tiny_decoding import loaded

TOLERANCE = 1e-4
TEXT = "The harness measures 3 things: 17 * 24 = 408, def f(x): return x ** 2, and 'Ça va?'.\n"


@torch.no_grad()
def both(ours, theirs, tokens):
    ids = torch.tensor([tokens])
    positions = torch.arange(len(tokens))[None]
    return ours.logits(ours(ids, positions)[0])[0], theirs(ids).logits[0]


def test_smollm2_over_512_tokens(smollm2_models):
    tokens = (smollm2_models.checkpoint.tokenizer.encode(TEXT) * 20)[:512]
    assert len(tokens) == 512 and len(set(tokens)) > 30
    found, wanted = both(smollm2_models.ours, smollm2_models.theirs, tokens)
    assert found.shape == (512, 49152)
    assert relative_error(found, wanted) <= TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_tiny_models(tiny_models, family):
    saved = tiny_models[family]
    torch.manual_seed(0)
    found, wanted = both(loaded(saved.folder), saved.model, torch.randint(320, (200,)).tolist())
    assert relative_error(found, wanted) <= TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_tiny_models_far_from_the_start(tiny_models, family):
    """Positions in the thousands, where a wrong rotary frequency shows."""
    saved = tiny_models[family]
    torch.manual_seed(0)
    ids, positions = torch.randint(320, (1, 60)), torch.arange(9000, 9060)[None]
    ours = loaded(saved.folder)
    found = ours.logits(ours(ids, positions)[0])[0]
    assert relative_error(found, saved.model(ids, position_ids=positions).logits[0]) <= TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_a_tap_is_the_output_of_its_layer(tiny_models, family):
    """Tap i is hidden_states[i + 1] of Transformers; of the last layer before the final norm, which their list has behind it."""
    saved = tiny_models[family]
    ours = loaded(saved.folder)
    last = ours.config.num_layers - 1
    ids = torch.randint(320, (1, 20), generator=torch.Generator().manual_seed(0))
    hidden, features = ours(ids, torch.arange(20)[None], taps=(last, 0))
    theirs = saved.model(ids, output_hidden_states=True).hidden_states
    tapped_last, tapped_first = features.split(ours.config.hidden_size, dim=-1)
    torch.testing.assert_close(tapped_first, theirs[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.norm(tapped_last), theirs[last + 1], rtol=1e-4, atol=1e-4)
    assert torch.equal(tapped_last, hidden)
