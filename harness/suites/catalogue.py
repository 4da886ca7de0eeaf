"""Every prompt file: where it comes from, what its right bytes are and what it may be used for.

The bytes of the external files are never part of this project. A file is right when its SHA-256 is the one written
here, whichever way it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptFile:
    """One file of prompts. ``rows`` counts its records, before any split is taken.

    ``pin`` says what ``sha256`` is the checksum of: ``bytes``, or ``rows`` when the same content circulates in
    different bytes (then it is that of the parsed records in canonical JSON, see ``files.canonical``).
    ``repository``, ``path`` and ``commit`` name the upstream place; a bundled file has none.
    """

    file: str
    sha256: str
    rows: int
    licence: str
    repository: str = ""
    path: str = ""
    commit: str = ""
    pin: str = "bytes"

    @property
    def bundled(self) -> bool:
        return not self.repository

    @property
    def source(self) -> str:
        """The upstream place in words, fit for a table or an error."""
        if self.bundled:
            return "this project"
        where = f"github.com/{self.repository} {self.path}"
        # mbpp is pinned by its rows and so needs no commit: any revision with the same rows is right.
        return f"{where} at commit {self.commit[:12]}" if self.commit else where


_GSM8K_COMMIT = "3101c7d5072418e28b9008a6636bde82a006892c"

SUITES: dict[str, PromptFile] = {
    "quick": PromptFile(
        file="quick.jsonl",
        sha256="d3ad9d0907a2d0003154a04a2a5231a397c7ceb4807d1a78fd7476bf9e63a496",
        rows=32,
        licence="CC0-1.0",
    ),
    "gsm8k": PromptFile(
        file="gsm8k_test.jsonl",
        sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        rows=1319,
        licence="MIT",
        repository="openai/grade-school-math",
        path="grade_school_math/data/test.jsonl",
        commit=_GSM8K_COMMIT,
    ),
    "math500": PromptFile(
        file="math500_test.jsonl",
        sha256="35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        rows=500,
        licence="MIT",
        repository="openai/prm800k",
        path="prm800k/math_splits/test.jsonl",
        commit="7ecc794703b2877f63226f2477a49b34f9b25163",
    ),
    "humaneval": PromptFile(
        file="HumanEval.jsonl.gz",
        sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        rows=164,
        licence="MIT",
        repository="openai/human-eval",
        path="data/HumanEval.jsonl.gz",
        commit="6d43fb980f9fee3c892a914eda09951f772ad10d",
    ),
    "mbpp": PromptFile(
        file="mbpp_sanitized.json",
        sha256="0a699546e9e40b657bfd6bdaf9ecd330bd590ecc8e0602e9cb0ef85cd41d6e16",
        rows=427,
        licence="CC-BY-4.0",
        repository="google-research/google-research",
        path="mbpp/sanitized-mbpp.json",
        pin="rows",
    ),
    "mt_bench": PromptFile(
        file="mt_bench_question.jsonl",
        sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        rows=80,
        licence="Apache-2.0",
        repository="lm-sys/FastChat",
        path="fastchat/llm_judge/data/mt_bench/question.jsonl",
        commit="0e6d3e4beaab66f4d3f93db72541a4abab8af28d",
    ),
    "spec_bench": PromptFile(
        file="spec_bench_question.jsonl",
        sha256="4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
        rows=480,
        licence="Apache-2.0; sub-sources have their own",
        repository="hemingkx/Spec-Bench",
        path="data/spec_bench/question.jsonl",
        commit="fd2c1cd7d2201ef71db4c5f4e455008f017967bf",
    ),
}

# Read for training drafters only; never a suite.
GSM8K_TRAIN = PromptFile(
    file="gsm8k_train.jsonl",
    sha256="17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    rows=7473,
    licence="MIT",
    repository="openai/grade-school-math",
    path="grade_school_math/data/train.jsonl",
    commit=_GSM8K_COMMIT,
)
