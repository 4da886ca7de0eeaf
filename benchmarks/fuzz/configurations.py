"""Random command lines of ``python -m harness``: the real keys with sane, boundary, wild, mistyped and contradicting values."""

from __future__ import annotations

import random
from collections.abc import Iterator

# Every run is of one prompt and few tokens; what is drawn comes behind and overrides.
TINY = ("suite.limit=1", "model.dtype=float32", "measure.warmup=0")
MOST_TOKENS = 8

SANE = {
    "strategy": ["baseline", "mtp", "dflash", "ddtree"],
    "strategy.budget": ["1", "2", "16", "63", "64", "1024", "auto"],
    "strategy.k": ["1", "3", "16"],
    "strategy.drafter": ["smollm2-135m"],
    "engine.threads": ["null", "1", "2"],
    "engine.device": ["auto", "cpu"],
    "model.dtype": ["float32", "fp32", "auto", "bfloat16"],
    "suite.limit": ["1", "2"],
    "suite.seed": ["0", "1"],
    "suite.max_turns": ["1", "null"],
    "suite.history": ["own", "baseline"],
    "sampling": ["greedy", "sample"],
    "sampling.temperature": ["0", "0.7", "1e-9", "1e-320", "1e300"],
    "sampling.top_k": ["0", "1", "50", "1000000000000"],
    "sampling.top_p": ["1", "0.9", "1e-12", "5e-324"],
    "sampling.seed": ["0", "9223372036854775000"],
    "sampling.max_new_tokens": [str(n) for n in range(1, MOST_TOKENS + 1)],
    "measure.repetitions": ["1", "2"],
    "measure.batch": ["1", "2", "8"],
    "measure.seed": ["0", "123456789012345678901234567890"],
    "measure.warmup": ["0", "1"],
    "measure.baseline": ["baseline", "null"],
    "measure.root": ["runs", "a/b/c", "'with space'", "'ünï'"],
    "measure.round_times": ["true", "false"],
    "experiment": ["compare"],
}
# Keys of a strategy that is not the default one.
_NEEDS = {"strategy.k": "strategy=mtp", "strategy.budget": "strategy=ddtree"}
JUNK = ["null", "''", "abc", "-1", "0", "1.5", "nan", "inf", "-inf", "true", "[]", "[1,2]", "{}", "{a: 1}", "1e400",
        "1000000000000000000000000000000", "18446744073709551616", "'1'", "0x10", "1_000", "???", "${nowhere}", "'${oc.env:HOME}'",
        "'\\u0000'", "none", "1,2", "range(1,3)"]  # fmt: skip
WILD = {
    "strategy": ["eagle", "DDTree", "ddtree.yaml", "../strategy/ddtree"],
    "strategy.name": ["baseline", "../../up", "a/b", "x y", "'|'", "''", "null", "7"],
    "strategy._target_": ["nowhere.build", "math.pi", "json.dumps", "strategies.dflash.build", "''", "null"],
    "strategy.drafter": ["nowhere", "/", "''", "/dev/null", "../smollm2-135m"],
    "strategy.budget": ["1025", "0", "-5", "2.0", "many"],
    "strategy.k": ["17", "0", "2.5"],
    "engine": ["tgi", "Torch"],
    "engine.threads": ["0", "-3", "1.5", "two", "1000000000000"],
    "engine.device": ["cuda", "tpu", "cpu:7", "meta", "''", "3"],
    "engine.name": ["a/b", "''"],
    "model": ["gpt5", "local"],
    "model.path": ["nowhere", "/", "/dev/null", "/etc/hostname", "''"],
    "model.name": ["a/b", "../../x", "'x\ny'", "''", "7"],
    "model.source": ["nowhere.fetch", "os.getcwd", "math.pi", "''"],
    "model.dtype": ["float16", "int8", "torch.float32", "32", "''"],
    "suite": ["quik", "gsm8k", "mt_bench", "aime24"],
    "suite.name": ["gsm8k", "nope", "''"],
    "suite.limit": ["0", "-1", "33", "1.0", "all"],
    "suite.root": ["nowhere", "/dev/null"],
    "suite.history": ["other", "''"],
    "suite.max_turns": ["0", "-1", "99"],
    "sampling.temperature": ["-1", "nan", "inf", "hot", "-0.0", "1e-400"],
    "sampling.top_p": ["0", "1.0000001", "-0.1", "nan"],
    "sampling.top_k": ["-1", "0.5"],
    "sampling.seed": ["-1", "9223372036854775808", "18446744073709551616", "1.5"],
    "sampling.max_new_tokens": ["0", "-8", "2.5", "few"],
    "measure.repetitions": ["0", "-1", "1.5"],
    "measure.batch": ["0", "-2", "1.5", "x"],
    "measure.seed": ["-1", "x"],
    "measure.warmup": ["-1", "x"],
    "measure.baseline": ["nobody", "ddtree", "mtp", "''"],
    "measure.root": ["/dev/null", "/proc/none", "''", "null", "a" * 300],
    "measure.round_times": ["maybe", "2"],
    "resume": ["nowhere", ".", "''", "/dev/null", "7"],
}
FLAGS = ["--help", "--cfg=job", "--info=all", "--hydra-help", "--wat", "-x", "--config-name=nope", "--config-dir=/nowhere", "--package=a",
         "--experimental-rerun=x", "--cfg=nope", "--resolve", "-c", "--version", "-p=x", "--config-path=/nowhere", "--multirun=1", "--run"]  # fmt: skip
SHAPES = ["strategy", "=", "a=[", "a={b", "strategy.budget=", "=7", "+strategy.budget=7", "++strategy.budget=7", "~strategy.budget", "~arms.baseline",
          "~arms", "~strategy", "~sampling.top_k", "~suite", "~measure", "~model.source", "arms=null", "sampling=null", "model=null", "strategy=null",
          "+arms.x=1", "+arms.x={name: x}", "+strategy@arms.small=ddtree", "+strategy@arms.small=mtp", "arms.baseline.name=other", "arms={}",
          "+foo=1", "+sampling.foo=1", "++measure.foo.bar=1", "sede=3", "hydra.run.dir=elsewhere", "hydra.verbose=true", "hydra/job_logging=nope",
          "hydra.searchpath=[pkg://nope]", "hydra.mode=MULTIRUN", "hydra.sweep.dir=x", "hydra.searchpath=[file:///nowhere]", "hydra=1", "experiment=nope", "experiment=[]", "strategy=[ddtree]",
          "sampling={}", "suite={name: quick}", "model={}", "engine={}", "measure={}", "a.b.c=1", "strategy.budget.x=1", "'quoted'=1", "ü=1", "  ", ""]  # fmt: skip


def configurations(seed: int, count: int) -> Iterator[list[str]]:
    """``count`` lists of overrides, a function of ``seed``: a quarter sane throughout, the others with something else in them."""
    generator = random.Random(seed)
    for number in range(count):
        drawn = [override for _ in range(generator.randint(0, 4)) for override in _sane(generator)]
        if number % 4:
            drawn += [_odd(generator) for _ in range(generator.choice([1, 1, 1, 2]))]
            generator.shuffle(drawn)
        yield [*TINY, f"sampling.max_new_tokens={generator.randint(1, MOST_TOKENS)}", *drawn]


def _sane(generator: random.Random) -> list[str]:
    key = generator.choice(list(SANE))
    drawn = f"{key}={generator.choice(SANE[key])}"
    return [_NEEDS[key], drawn] if key in _NEEDS else [drawn]


def _odd(generator: random.Random) -> str:
    kind = generator.choice(["wild"] * 4 + ["junk"] * 3 + ["shape"] * 2 + ["flag"])
    if kind == "shape":
        return generator.choice(SHAPES)
    if kind == "flag":
        return generator.choice(FLAGS)
    key = generator.choice(list(WILD if kind == "wild" else SANE))
    return f"{generator.choice(['', '', '', '+', '++'])}{key}={generator.choice(WILD[key] if kind == 'wild' else JUNK)}"
