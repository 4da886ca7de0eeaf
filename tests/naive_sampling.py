"""Temperature, top-k and top-p in plain Python: what sampling is compared with."""

import math


def naive_probabilities(logits: list[float], temperature: float, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """What ``kernels.probabilities`` says it gives, one token at a time, for a list of logits."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    if top_k:
        kth = sorted(logits, reverse=True)[:top_k][-1]
        weights = [w if x >= kth else 0.0 for w, x in zip(weights, logits, strict=True)]
    chances = [w / sum(weights) for w in weights]
    if top_p < 1:
        kept, mass = set(), 0.0
        for token in sorted(range(len(chances)), key=lambda t: -chances[t]):
            if mass >= top_p:
                break
            kept.add(token)
            mass += chances[token]
        chances = [c if t in kept else 0.0 for t, c in enumerate(chances)]
    return [c / sum(chances) for c in chances]
