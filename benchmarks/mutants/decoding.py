"""Bugs in the loop: acceptance, end tokens, positions, masks, caches, sampling, times."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

LOOP, ANSWERS = "harness/engines/torch/rounds.py", "harness/engines/torch/answers.py"
TRAPS = "tests/test_traps.py"

DECODING = (
    Mutant(
        "acceptance-off-by-one",
        "a round's record counts the root among the accepted tokens",
        ANSWERS,
        "Round(proposed, depth, width, accepted, emitted, at_s)",
        "Round(proposed, depth, width, min(accepted + 1, proposed), emitted, at_s)",
        (TRAPS,),
    ),
    Mutant(
        "bonus-delivered-twice",
        "the bonus token that a round began with is delivered again",
        "kernels/outcome.py",
        "shifted = torch.cat([accepted[:, 1:], bonus[:, None]], dim=1)",
        "shifted = torch.cat([accepted[:, :-1], bonus[:, None]], dim=1)",
        (TRAPS,),
    ),
    Mutant(
        "end-token-ignored-in-a-block",
        "an end token stops the output only as the last of a round's tokens",
        ANSWERS,
        "if token in self.request.end_tokens:",
        "if token in self.request.end_tokens and token == tokens[-1]:",
        (TRAPS,),
    ),
    Mutant(
        "first-of-several-end-tokens",
        "of a model's several end tokens only the first counts",
        ANSWERS,
        "if token in self.request.end_tokens:",
        "if token in self.request.end_tokens[:1]:",
        (TRAPS,),
    ),
    Mutant(
        "records-not-trimmed",
        "a round's record counts tokens behind an end token or the limit as emitted",
        ANSWERS,
        "return len(self.tokens) - before",
        "return len(tokens)",
        (TRAPS,),
    ),
    Mutant(
        "siblings-in-consecutive-positions",
        "rows of the tree are numbered one after another instead of by depth",
        LOOP,
        "cache.lengths[:, None] + tree.depths, cache",
        "cache.lengths[:, None] + torch.arange(tree.rows, device=tree.tokens.device), cache",
        (TRAPS,),
    ),
    Mutant(
        "siblings-see-each-other",
        "the mask lets rows with the same parent see one another",
        "kernels/masks.py",
        "if parent >= 0 else 0) | 1 << row",
        "if parent >= 0 else 0) | 1 << row | sum(1 << other for other, its in enumerate(row_parents) if its == parent)",
        ("tests/test_masks_attention.py",),
    ),
    Mutant(
        "wrong-rows-committed-to-the-target",
        "the target's cache keeps the first rows of the tree, whatever the accepted path",
        "harness/models/layer_cache.py",
        "keep_rows(self.attention, self.lengths, path)",
        "pass",
        ("tests/test_masks_attention.py",),
    ),
    Mutant(
        "wrong-rows-committed-to-the-drafter",
        "the drafter is given the features of the first rows of the tree, whatever the accepted path",
        LOOP,
        "features.gather(1, path[..., None].expand(-1, -1, features.shape[-1]))",
        "features[:, : path.shape[1]]",
        (TRAPS,),
        gated=True,
    ),
    Mutant(
        "walk-ignores-the-parent",
        "a drafted token is accepted wherever in the tree it stands",
        "kernels/acceptance.py",
        "following = children.get((path[-1], token))",
        "following = next((r for (_, t), r in children.items() if t == token and r > path[-1]), None)",
        ("tests/test_acceptance.py",),
    ),
    Mutant(
        "residual-sampling-biased",
        "behind accepted tokens the bonus token is drawn again, with a number that has been used",
        "kernels/acceptance.py",
        "bonuses.append(token)",
        "bonuses.append(choose(request, path[-1], max(0, len(path) - 2)))",
        ("tests/test_distribution.py",),
    ),
    Mutant(
        "random-numbers-by-round",
        "every round samples with the first numbers of the seed instead of those of its positions",
        LOOP,
        "self._given[:, None] + self._places",
        "0 * self._given[:, None] + self._places",
        ("tests/test_distribution.py",),
    ),
    Mutant(
        "nucleus-too-small",
        "top-p drops the token at which the sum reaches p",
        "kernels/sampling.py",
        "before >= top_p",
        "before + ordered >= top_p",
        ("tests/test_acceptance.py",),
    ),
    Mutant(
        "drafters-prefill-outside-ttft",
        "the time to the first token ends before the drafter has read the prompt",
        LOOP,
        "        self.clock.reset()\n",
        "        self.clock.reset()\n"
        "        inner, late = self.proposer, []\n"
        "        inner.commit = lambda *told: late.append([each.clone() for each in told])\n"
        "        inner.propose = lambda *asked: (\n"
        "            [type(inner).commit(inner, *told) for told in late], late.clear(), type(inner).propose(inner, *asked))[-1]\n",
        (TRAPS,),
    ),
    Mutant(
        "clock-starts-after-the-first-draft",
        "the decode time leaves the first round's draft out, as the published protocol does",
        ANSWERS,
        "self.finish_reason, self.ttft_s, end,",
        "self.finish_reason, self.ttft_s + sum(r.draft_s + r.build_s for r in rounds[:1]), end,",
        (TRAPS,),
    ),
)
