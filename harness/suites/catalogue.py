"""Every prompt file: where it comes from, what its right bytes are and what it may be used for.

The bytes of the external files are never part of this project. A file is right when its SHA-256 is the one written
here, whichever way it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class PromptFile:
    """One file of prompts. ``rows`` counts its records, before any split is taken.

    ``pin`` says what ``sha256`` is the checksum of: ``bytes``, or ``rows`` when the same content circulates in
    different bytes (then it is that of the parsed records in canonical JSON, see ``files.canonical``).
    ``repository``, ``path`` and ``commit`` name the upstream place; a bundled file has none. ``lfs``: the repository
    holds a pointer there, the bytes are in its large file storage. ``asked`` counts the prompts of the suite where
    they are fewer than the records.
    """

    file: str
    sha256: str
    rows: int
    licence: str
    repository: str = ""
    path: str = ""
    commit: str = ""
    pin: str = "bytes"
    lfs: bool = False
    asked: int | None = None

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

    @property
    def url(self) -> str:
        """Where the bytes are: GitHub's raw address, or that of its large file storage."""
        host = "media.githubusercontent.com/media" if self.lfs else "raw.githubusercontent.com"
        return f"https://{host}/{self.repository}/{self.commit or 'HEAD'}/{self.path}"


@dataclass(frozen=True)
class HubSet:
    """A data set of the Hugging Face hub of which no right bytes are known here, so a user must name its revision.

    ``paths`` are files of its repository, in the order of their rows; ``fields`` what a prompt is made of; ``rows`` is
    the published number, which nobody here has counted.
    """

    repository: str
    paths: tuple[str, ...]
    fields: tuple[str, ...]
    rows: int
    licence: str

    @property
    def source(self) -> str:
        return f"huggingface.co/datasets/{self.repository}"

    def url(self, revision: str, path: str) -> str:
        return f"https://huggingface.co/datasets/{self.repository}/resolve/{quote(revision, safe='')}/{quote(path)}"


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
        lfs=True,
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
        asked=257,
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

HUB_SUITES: dict[str, HubSet] = {
    "aime24": HubSet(
        repository="HuggingFaceH4/aime_2024",
        paths=("data/train-00000-of-00001.parquet",),
        fields=("problem",),
        rows=30,
        licence="none declared",
    ),
    "aime25": HubSet(
        repository="MathArena/aime_2025",
        paths=("data/train-00000-of-00001.parquet",),
        fields=("problem",),
        rows=30,
        licence="CC-BY-NC-SA-4.0",
    ),
    "livecodebench": HubSet(
        repository="livecodebench/code_generation_lite",
        paths=("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl"),
        fields=("question_content", "starter_code"),
        rows=1055,
        licence="see its card",
    ),
    "swe_bench_lite": HubSet(
        repository="princeton-nlp/SWE-bench_Lite",
        paths=("data/test-00000-of-00001.parquet",),
        fields=("instance_id", "problem_statement"),
        rows=300,
        licence="none declared",
    ),
    "alpaca": HubSet(
        repository="tatsu-lab/alpaca",
        paths=("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",),
        fields=("instruction", "input"),
        rows=52002,
        licence="CC-BY-NC-4.0",
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

# What GitHub holds, by the name that ``fetch`` takes.
FETCHABLE: dict[str, PromptFile] = {
    **{name: entry for name, entry in SUITES.items() if not entry.bundled},
    "gsm8k_train": GSM8K_TRAIN,
}
