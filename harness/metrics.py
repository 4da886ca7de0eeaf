"""Every figure of one request, and the figures that pool several. Pure functions over ``Decoded`` records.

Symbols: N output tokens delivered (trimmed at the end token and at the limit), R rounds. The first output token comes
from prefill and belongs to no round, so rounds deliver N - 1 tokens. A request with N < 2 has no decode speed, and one
without rounds no acceptance length: those figures are ``None``, never 0, and pooled figures leave such requests out.
Rounds that an engine only counted (``Drafting``) give every acceptance figure that a sum can give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.records import Decoded

LOOPS_FROM = 0.3
PHASES = ("draft_s", "build_s", "verify_s", "commit_s")


def output_tokens(decoded: Decoded) -> int:
    """N: the token ids that came, or the server's own count where none came; never text that was tokenised again."""
    return len(decoded.tokens) if decoded.output_tokens is None else decoded.output_tokens


def rounds(decoded: Decoded) -> int:
    """R, shown one by one or counted."""
    return decoded.drafting.rounds if decoded.drafting else len(decoded.rounds)


def accepted(decoded: Decoded) -> int:
    """Drafted tokens that the target confirmed, over all rounds, before trimming."""
    return decoded.drafting.accepted if decoded.drafting else sum(r.accepted for r in decoded.rounds)


def ttft_s(decoded: Decoded) -> float:
    """Time to first token = first token available - request handed over, the drafter's prefill included [s]."""
    return decoded.ttft_s


def decode_s(decoded: Decoded) -> float:
    """Decode time = last token available - first token available; every draft is inside [s]."""
    return decoded.end_s - decoded.ttft_s


def end_to_end_s(decoded: Decoded) -> float:
    """End-to-end latency = last token available - request handed over [s]."""
    return decoded.end_s


def tpot_s(decoded: Decoded) -> float | None:
    """Time per output token = decode time / (N - 1) [s/token]."""
    steps = output_tokens(decoded) - 1
    return decode_s(decoded) / steps if steps > 0 and decode_s(decoded) > 0 else None


def decode_tokens_per_s(decoded: Decoded) -> float | None:
    """Decode speed = (N - 1) / decode time [token/s]."""
    tpot = tpot_s(decoded)
    return None if tpot is None else 1 / tpot


def end_to_end_tokens_per_s(decoded: Decoded) -> float | None:
    """End-to-end speed = N / (last token available - request handed over) [token/s]."""
    return output_tokens(decoded) / decoded.end_s if output_tokens(decoded) and decoded.end_s > 0 else None


def acceptance_committed(decoded: Decoded) -> float | None:
    """Acceptance length, committed = (N - 1) / R [token/round]."""
    return (output_tokens(decoded) - 1) / rounds(decoded) if rounds(decoded) else None


def acceptance_verified(decoded: Decoded) -> float | None:
    """Acceptance length, verified = 1 + sum of accepted / R, before trimming [token/round]."""
    return 1 + accepted(decoded) / rounds(decoded) if rounds(decoded) else None


def chunks_s(decoded: Decoded) -> list[float]:
    """Chunk latency = time between two deliveries of a round's tokens, the first counted from the first token [s]."""
    times = [decoded.ttft_s, *(delivery.at_s for delivery in decoded.rounds or decoded.chunks[1:])]
    return [later - earlier for earlier, later in zip(times, times[1:])]


def chunk_tokens(decoded: Decoded) -> list[int]:
    """Tokens of every delivery behind the first, where they were counted [token]."""
    if decoded.rounds:
        return [r.emitted for r in decoded.rounds]
    return [chunk.tokens for chunk in decoded.chunks[1:] if chunk.tokens is not None]


def repeated_4grams(tokens: Sequence[int]) -> float:
    """Share of an output's 4-grams that occurred in it before: greedy loops are easy to draft [-]."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def loops(tokens: Sequence[int]) -> bool:
    """Whether an output loops: its share of repeated 4-grams is at least ``LOOPS_FROM``."""
    return repeated_4grams(tokens) >= LOOPS_FROM


def pooled_decode_tokens_per_s(requests: Sequence[Decoded]) -> float | None:
    """Sum of (N - 1) / sum of decode times, over the requests with N >= 2 [token/s]."""
    timed = [d for d in requests if tpot_s(d) is not None]
    return sum(output_tokens(d) - 1 for d in timed) / sum(map(decode_s, timed)) if timed else None


def pooled_end_to_end_tokens_per_s(requests: Sequence[Decoded]) -> float | None:
    """Sum of N / sum of (last token available - request handed over) [token/s]."""
    seconds = sum(d.end_s for d in requests)
    return sum(map(output_tokens, requests)) / seconds if seconds > 0 else None


def pooled_acceptance_committed(requests: Sequence[Decoded]) -> float | None:
    """Sum of (N - 1) / sum of R, over the requests with rounds; the headline [token/round]."""
    with_rounds = [d for d in requests if rounds(d)]
    total = sum(map(rounds, with_rounds))
    return sum(output_tokens(d) - 1 for d in with_rounds) / total if total else None


def pooled_acceptance_verified(requests: Sequence[Decoded]) -> float | None:
    """1 + sum of accepted / sum of R, before trimming [token/round]."""
    total = sum(map(rounds, requests))
    return 1 + sum(map(accepted, requests)) / total if total else None


def accepted_histogram(requests: Sequence[Decoded]) -> list[int]:
    """Rounds by accepted count: entry a is the number of rounds that accepted exactly a drafted tokens [round]."""
    counts = Counter(r.accepted for d in requests for r in d.rounds)
    for drafting in (d.drafting for d in requests if d.drafting):
        if sum(drafting.accepted_to_depth) == drafting.accepted:  # rounds with a or more less those with more
            reached = (drafting.rounds, *drafting.accepted_to_depth, 0)
            counts.update({a: more - fewer for a, (more, fewer) in enumerate(zip(reached, reached[1:]))})
    return [counts[a] for a in range(max(counts) + 1)] if counts else []


def proposed_histogram(requests: Sequence[Decoded]) -> dict[str, int]:
    """Rounds by nodes proposed, for every number of nodes that occurs, ascending [round]."""
    counts = Counter(r.proposed for d in requests for r in d.rounds)
    return {str(nodes): counts[nodes] for nodes in sorted(counts)}


def acceptance_by_depth(requests: Sequence[Decoded]) -> list[float]:
    """P(depth d accepted | depth d - 1 accepted), d = 1, 2, ..., over the rounds whose tree reached depth d [-]."""
    every = [r for d in requests for r in d.rounds]
    shares = []
    for depth in range(1, max((r.depth for r in every), default=0) + 1):
        reached = [r for r in every if r.depth >= depth and r.accepted >= depth - 1]
        if not reached:
            break
        shares.append(sum(r.accepted >= depth for r in reached) / len(reached))
    return shares


def acceptance_to_depth(requests: Sequence[Decoded]) -> list[float]:
    """P(depth d accepted), d = 1, 2, ... = rounds with accepted >= d / R; their sum + 1 is the verified length [-]."""
    counts: Counter[int] = Counter()
    for decoded in requests:
        if decoded.drafting:
            counts.update(dict(enumerate(decoded.drafting.accepted_to_depth, 1)))
        counts.update(depth for r in decoded.rounds for depth in range(1, r.accepted + 1))
    total = sum(map(rounds, requests))
    return [counts[depth] / total for depth in range(1, max((+counts), default=0) + 1)]


def acceptance_by_looping(requests: Sequence[Decoded]) -> dict[str, float | None]:
    """Acceptance length (pooled, committed) of the outputs that loop and of the others [token/round], and their share."""
    known = [d for d in requests if d.tokens]
    looping = [d for d in known if loops(d.tokens)]
    others = [d for d in known if not loops(d.tokens)]
    return {
        "share": len(looping) / len(known) if known else None,
        "acceptance_length_looping": pooled_acceptance_committed(looping),
        "acceptance_length_others": pooled_acceptance_committed(others),
    }


def mean_round(requests: Sequence[Decoded]) -> dict[str, float | None]:
    """A mean round: nodes proposed [node], tree depth and width [node], and seconds in each phase [s].

    ``chunk_s`` is the time between two deliveries; ``host_s``, the host gap, is what the phases leave of it. A phase that
    was not timed in every round is ``None``, and the host gap with it. Of rounds that were only counted, ``proposed`` is known,
    and ``chunk_s`` is decode time / R.
    """
    every = [r for d in requests for r in d.rounds]
    names = ("proposed", "depth", "width", *PHASES)
    if not every:
        return _mean_counted_round([d for d in requests if d.drafting], names)
    columns = {name: [getattr(r, name) for r in every] for name in names}
    means = {name: None if None in column else float(np.mean(column)) for name, column in columns.items()}
    chunk = float(np.mean([c for d in requests for c in chunks_s(d)]))
    phases = [means[name] for name in PHASES]
    return {**means, "chunk_s": chunk, "host_s": None if None in phases else chunk - sum(phases)}


def _mean_counted_round(requests: Sequence[Decoded], names: Sequence[str]) -> dict[str, float | None]:
    total = sum(d.drafting.rounds for d in requests)
    if not total:
        return {}
    proposed, seconds = sum(d.drafting.proposed for d in requests), sum(map(decode_s, requests))
    unknown = dict.fromkeys((*names, "host_s"))
    return {**unknown, "proposed": proposed / total, "chunk_s": seconds / total if seconds > 0 else None}


def bandwidth_use(
    requests: Sequence[tuple[int, Decoded]], weight_bytes: int, cache_bytes_per_token: int, copy_bytes_per_s: float
) -> float | None:
    """Bytes that the rounds must move / decode time / the machine's copy bandwidth [-], over ``(prompt tokens, request)``.

    A round must read the target's weights once and the cache of every position before it once: weights + cache per token
    * (prompt + tokens delivered before the round). The drafter's bytes are not counted.
    """
    moved = seconds = 0.0
    for prompt_tokens, decoded in requests:
        context = prompt_tokens
        for r in decoded.rounds:
            moved += weight_bytes + cache_bytes_per_token * context
            context += r.emitted
        seconds += decode_s(decoded) if decoded.rounds else 0.0
    return moved / seconds / copy_bytes_per_s if seconds > 0 else None


def percentiles(values: Sequence[float | None], points: Sequence[int] = (50, 90, 95, 99)) -> dict[str, float | None]:
    """Percentiles with linear interpolation, ``None`` left out, and ``n``, the number of samples behind them."""
    present = [v for v in values if v is not None]
    found = np.percentile(present, points) if present else [None] * len(points)
    return {**{f"p{p}": None if v is None else float(v) for p, v in zip(points, found)}, "n": len(present)}


def mean(values: Sequence[float | None]) -> float | None:
    """Arithmetic mean over the requests that have the figure."""
    present = [v for v in values if v is not None]
    return float(np.mean(present)) if present else None


def identical_share(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float | None:
    """Cells whose tokens equal the baseline's of the same prompt, turn and repetition / cells with such a partner [-]."""
    return sum(tuple(a) == tuple(b) for a, b in pairs) / len(pairs) if pairs else None
