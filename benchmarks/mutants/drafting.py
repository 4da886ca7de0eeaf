"""Bugs in what is drafted. The target still decides, so every output is right and only acceptance suffers."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

DRAFTERS, TRAPS = "tests/test_drafters.py", "tests/test_traps.py"

DRAFTING = (
    Mutant(
        "wrong-tap-layer",
        "the DFlash drafter reads the layer before each of those that it was trained on",
        "strategies/dflash/proposer.py",
        "self.taps = drafter.config.target_layer_ids",
        "self.taps = tuple(max(0, layer - 1) for layer in drafter.config.target_layer_ids)",
        (TRAPS,),
        gated=True,
    ),
    Mutant(
        "taps-before-the-layer",
        "the target's taps are the inputs of the layers and not their outputs",
        "harness/models/dense.py",
        "        for i, x in enumerate(self._passed(x, rope, cache, visible)):\n            if i in taps:\n                tapped[i] = x\n",
        "        for i, after in enumerate(self._passed(x, rope, cache, visible)):\n            if i in taps:\n                tapped[i] = x\n            x = after\n",
        ("tests/test_logits.py",),
        gated=True,
    ),
    Mutant(
        "drafters-positions-off-by-one",
        "the DFlash block stands one position too far from its context",
        "strategies/dflash/proposer.py",
        "positions = lengths[:, None] + self._offsets",
        "positions = lengths[:, None] + 1 + self._offsets",
        (DRAFTERS,),
        gated=True,
    ),
    Mutant(
        "slots-off-by-one",
        "slot k's distribution is used for the token before the one that it is of",
        "strategies/dflash/proposer.py",
        "hidden[:, 1:]",
        "hidden[:, :-1]",
        (DRAFTERS,),
        gated=True,
    ),
    Mutant(
        "tree-scores-without-log-softmax",
        "the tree is grown from raw logits, whose sums are no log-probabilities",
        "kernels/tree.py",
        "logprobs = wide.gather(1, ids) - wide.logsumexp(dim=-1, keepdim=True)",
        "logprobs = wide.gather(1, ids)",
        ("tests/test_tree.py",),
        gated=True,
    ),
    Mutant(
        "tree-grows-siblings-only-at-the-root",
        "a node's next sibling is pushed at depth 1 alone",
        "kernels/tree.py",
        "if rank + 1 < width:",
        "if rank + 1 < width and depth == 1:",
        ("tests/test_tree.py",),
        gated=True,
    ),
    Mutant(
        "drafter-cache-not-cropped",
        "the MTP head's entries of drafted tokens stay behind the committed ones",
        "strategies/mtp/proposer.py",
        "torch.stack([lengths, kept], out=",
        "torch.stack([lengths + (self.k - 1) * (self._rows > 0), kept], out=",
        (TRAPS,),
        gated=True,
    ),
    Mutant(
        "drafter-cache-cropped-too-far",
        "the crop behind an MTP draft drops the entry of the last committed position too",
        "strategies/mtp/proposer.py",
        "torch.stack([lengths, kept], out=",
        "torch.stack([lengths - (self._rows > 0), kept], out=",
        (TRAPS,),
        gated=True,
    ),
    Mutant(
        "accepted-entries-not-refilled",
        "the MTP head's entries of accepted tokens stay as drafted, made of its own states and not of the target's",
        "strategies/mtp/proposer.py",
        "        rows = tokens.shape[1]\n",
        "        if self._rows:\n"
        "            drafted = min(int(kept[0]), self.k) - 1\n"
        "            tokens, features, lengths, kept = tokens[:, drafted:], features[:, drafted:], lengths + drafted, kept - drafted\n"
        "        rows = tokens.shape[1]\n",
        (DRAFTERS,),
        gated=True,
    ),
    Mutant(
        "wrong-hidden-state",
        "the MTP head reads the target's last layer but one",
        "strategies/mtp/proposer.py",
        "self.taps = (target.num_layers - 1,)",
        "self.taps = (target.num_layers - 2,)",
        (TRAPS,),
        gated=True,
    ),
    Mutant(
        "wrong-next-token",
        "the MTP head's entries pair a hidden state with its own token and not with the next one",
        "strategies/mtp/proposer.py",
        "self._pass(following, self._hidden",
        "self._pass(self._tokens[:, : self._rows], self._hidden",
        (DRAFTERS,),
        gated=True,
    ),
)
