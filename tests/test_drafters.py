"""What drafters compute, against the papers' equations written out without caches; a slip here is silent loss of acceptance."""

import pytest
import torch
from tiny_decoding import drafter_config, head_config, shaken, tiny_config, tiny_target

from harness.engines.torch.engine import target_view
from kernels import ancestor_mask
from strategies.ddtree.proposer import TreeProposer
from strategies.dflash.checkpoint import new_drafter
from strategies.dflash.proposer import ChainProposer
from strategies.mtp.checkpoint import new_head
from strategies.mtp.proposer import MTPProposer

TEXT = [5, 9, 1, 7, 7, 30, 2, 11, 23, 40, 3]
BONUS = 17


@pytest.fixture(scope="module")
def model():
    return tiny_target(tiny_config(), seed=4)


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x, positions, theta):
    """``[rows, heads, width]``: element i turns with element i + width / 2, by position * theta^(-2i / width)."""
    half = x.shape[-1] // 2
    angles = torch.tensor([[p * theta ** (-i / half) for i in range(half)] for p in positions], dtype=x.dtype)[:, None]
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attended(queries, keys, values, seen):
    """``[rows, heads, width]`` each; ``seen(row, column)`` says which columns a row reads."""
    rows, heads, width = queries.shape
    group = heads // keys.shape[1]
    out = torch.zeros_like(queries)
    for row in range(rows):
        columns = [column for column in range(len(keys)) if seen(row, column)]
        for head in range(heads):
            scores = keys[columns, head // group] @ queries[row, head] / width**0.5
            out[row, head] = scores.softmax(0) @ values[columns, head // group]
    return out.flatten(1)


def swish_mlp(x, gate, up, down):
    gated = x @ gate.T
    return (gated * gated.sigmoid() * (x @ up.T)) @ down.T


def doubled(module):
    return {name: tensor.double() for name, tensor in module.state_dict().items()}


def block_logits(model, drafter, features, bonus):
    """Slot logits ``[block - 1, vocab]`` of a DFlash drafter that read ``features`` ``[n, taps * hidden]``."""
    c, w = drafter.config, doubled(drafter)
    context = rms(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], c.rms_norm_eps)
    start, embedding = len(context), model.embed.weight.double()
    x = embedding[[bonus] + [c.mask_token_id] * (c.block_size - 1)]
    positions = list(range(start + c.block_size))

    def heads(rows, name, layer):
        return (rows @ w[f"layers.{layer}.self_attn.{name}.weight"].T).unflatten(-1, (-1, c.head_dim))

    for layer in range(c.num_hidden_layers):
        own = {name: w[f"layers.{layer}.{name}.weight"] for name in ("input_layernorm", "post_attention_layernorm")}
        normed = rms(x, own["input_layernorm"], c.rms_norm_eps)
        read = torch.cat([context, normed])
        norms = [w[f"layers.{layer}.self_attn.{name}.weight"] for name in ("q_norm", "k_norm")]
        queries = rotated(rms(heads(normed, "q_proj", layer), norms[0], c.rms_norm_eps), positions[start:], c.rope_theta)
        keys = rotated(rms(heads(read, "k_proj", layer), norms[1], c.rms_norm_eps), positions, c.rope_theta)

        def seen(row, column, layer=layer):
            distance = start + row - column
            if not c.sliding(layer):
                return True
            return distance < c.sliding_window and (distance >= 0 if c.sliding_is_causal else -distance < c.sliding_window)

        mixed = attended(queries, keys, heads(read, "v_proj", layer), seen)
        x = x + mixed @ w[f"layers.{layer}.self_attn.o_proj.weight"].T
        mlp = [w[f"layers.{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
        x = x + swish_mlp(rms(x, own["post_attention_layernorm"], c.rms_norm_eps), *mlp)
    return rms(x, w["norm.weight"], c.rms_norm_eps)[1:] @ model.head.weight.double().T


BEHIND = torch.tensor([BONUS]), torch.tensor([len(TEXT)])


@torch.no_grad()
def features_of(model, taps, tokens=TEXT):
    return model(torch.tensor([tokens]), torch.arange(len(tokens))[None], taps=taps)[1]


def told(proposer, features, pieces):
    """``proposer`` after TEXT was committed in ``pieces``, with a draft between them."""
    proposer.reset(1, 64)
    start = 0
    for piece in pieces:
        told = torch.tensor([TEXT[start : start + piece]]), features[:, start : start + piece]
        proposer.commit(*told, torch.tensor([start]), torch.tensor([piece]))
        start += piece
        if start < len(TEXT):
            proposer.propose(torch.tensor([TEXT[start]]), torch.tensor([start]))
    return proposer


SLIDING = {
    "full": {},
    "sliding": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 4},
    "both ways": {"layer_types": ("full_attention", "sliding_attention"), "sliding_window": 3, "sliding_is_causal": False},
}


@pytest.mark.parametrize("changes", SLIDING.values(), ids=SLIDING)
@pytest.mark.parametrize("pieces", [[11], [6, 1, 4], [1] * 11])
@torch.inference_mode()
def test_a_dflash_block_is_what_the_equations_say(model, changes, pieces):
    drafter = shaken(new_drafter(drafter_config(model, rope_theta=500.0, **changes)), 1).eval()
    features = features_of(model, drafter.config.target_layer_ids)
    proposer = told(ChainProposer(drafter, target_view(model)), features, pieces)
    wanted = block_logits(model, drafter, features[0], BONUS).float()
    torch.testing.assert_close(proposer.slot_logits(*BEHIND)[0], wanted, rtol=1e-4, atol=1e-4)
    chain = proposer.propose(*BEHIND)
    assert chain.tokens[0].tolist() == [BONUS, *wanted.argmax(-1).tolist()]
    scores = wanted.log_softmax(-1).amax(-1).cumsum(0)
    torch.testing.assert_close(chain.logprobs[0, 1:], scores, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_ddtree_grows_from_the_slots_of_the_block(model):
    """Slot k belongs to depth k + 1: every path's score is the sum of its tokens' log-probabilities at their depths."""
    drafter = shaken(new_drafter(drafter_config(model)), 1).eval()
    features = features_of(model, drafter.config.target_layer_ids)
    tree = told(TreeProposer(drafter, target_view(model), 20), features, [11]).propose(*BEHIND)
    logprobs = block_logits(model, drafter, features[0], BONUS).log_softmax(-1)
    for row, ancestors in enumerate(ancestor_mask(tree.parents)[0]):
        path = [(int(tree.depths[0, i]), int(tree.tokens[0, i])) for i in ancestors.nonzero().flatten()]
        score = sum(float(logprobs[depth - 1, token]) for depth, token in path if depth)
        assert float(tree.logprobs[0, row]) == pytest.approx(score, rel=1e-4, abs=1e-4)
    assert tree.rows == 21 and int(tree.tokens[0, 1]) == int(logprobs[0].argmax())


def chain_of_head(model, head, features, k):
    """Tokens and their log-probabilities that an MTP head drafts behind TEXT and BONUS, each step from scratch."""
    c, w = head.config, {name.removesuffix(".weight"): tensor for name, tensor in doubled(head).items()}
    embedding, lm_head = model.embed.weight.double(), model.head.weight.double()
    hidden, following, drafted = features.double(), [*TEXT[1:], BONUS], []
    for _ in range(k):
        both = [rms(embedding[following], w["embedding_norm"], c.rms_norm_eps), rms(hidden, w["hidden_norm"], c.rms_norm_eps)]
        x = torch.cat(both, dim=-1) @ w["projection"].T
        normed, positions = rms(x, w["input_layernorm"], c.rms_norm_eps), range(len(following))
        queries, keys, values = (
            (normed @ w[f"{name}_proj"].T).unflatten(-1, (-1, c.head_dim)) for name in ("q", "k", "v")
        )
        queries, keys = rotated(queries, positions, c.rope_theta), rotated(keys, positions, c.rope_theta)
        x = x + attended(queries, keys, values, lambda row, column: column <= row) @ w["o_proj"].T
        mlp = [w[f"{name}_proj"] for name in ("gate", "up", "down")]
        x = x + swish_mlp(rms(x, w["post_attention_layernorm"], c.rms_norm_eps), *mlp)
        logprobs = (rms(x[-1], w["norm"], c.rms_norm_eps) @ lm_head.T).log_softmax(-1)
        drafted.append((int(logprobs.argmax()), float(logprobs.max())))
        # The next step's entry: the head's own state, and the token just drafted.
        hidden, following = torch.cat([hidden, x[-1:]]), [*following, drafted[-1][0]]
    return drafted


@pytest.mark.parametrize("pieces", [[11], [6, 1, 4], [1] * 11])
@torch.inference_mode()
def test_an_mtp_chain_is_what_the_equations_say(model, pieces):
    head = shaken(new_head(head_config(model, rope_theta=500.0)), 2).eval()
    features = features_of(model, (model.config.num_layers - 1,))
    chain = told(MTPProposer(head, target_view(model), 4), features, pieces).propose(*BEHIND)
    wanted = chain_of_head(model, head, features[0], 4)
    assert chain.tokens[0].tolist() == [BONUS, *(token for token, _ in wanted)]
    scores = torch.tensor([score for _, score in wanted]).cumsum(0)
    torch.testing.assert_close(chain.logprobs[0, 1:], scores, rtol=1e-3, atol=1e-3)
