"""How a record of each suite becomes a prompt: the wording of the DFlash and DDTree papers' code, to the letter."""

from __future__ import annotations

from dataclasses import dataclass

MATHS = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
HUMANEVAL = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{question}\n```"
)
SWE_BENCH = "Problem Statement:\n{question}\nPlease fix the issue described above."
LIVECODEBENCH = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program\n\n### Question:\n{question}\n\n### Format: {how}\n```python\n{code}\n```\n\n"
    "### Answer: (use the provided format with backticks)"
)
BARE = "{question}"

WORDING: dict[str, str] = {
    "quick": BARE,
    "gsm8k": MATHS,
    "math500": MATHS,
    "humaneval": HUMANEVAL,
    "mbpp": BARE,
    "mt_bench": BARE,
    "spec_bench": BARE,
    "aime24": MATHS,
    "aime25": MATHS,
    "livecodebench": LIVECODEBENCH,
    "swe_bench_lite": SWE_BENCH,
    "alpaca": BARE,
}

# The papers evaluate on MBPP's test split; rows outside it may train drafters.
MBPP_EVALUATION = range(11, 511)


@dataclass(frozen=True)
class Row:
    """One conversation: ``turns`` are what the user says, in order and worded; ``id`` is unique in the suite."""

    id: str
    category: str
    turns: tuple[str, ...]


def rows_of(suite: str, records: list[dict]) -> tuple[Row, ...]:
    """The rows of ``suite`` in file order, worded; records outside an evaluation split are left out."""
    if suite == "mbpp":
        records = [record for record in records if record["task_id"] in MBPP_EVALUATION]
    return tuple(_row(suite, index, record) for index, record in enumerate(records))


def worded(template: str, question: str, **more: str) -> str:
    return template.format(question=question, **more)


def bare(prompt: str) -> str:
    """``prompt`` without the papers' wording around it: what two prompts must be compared by."""
    for template in (MATHS, HUMANEVAL):
        before, after = template.format(question="\0").split("\0")
        if before:
            prompt = prompt.removeprefix(before)
        if after:
            prompt = prompt.removesuffix(after)
    return prompt


def _row(suite: str, index: int, record: dict) -> Row:
    more: dict[str, str] = {}
    match suite:
        case "gsm8k":
            key, category, questions = index, "maths", [record["question"]]
        case "math500":
            key, category, questions = index, record["subject"], [record["problem"]]
        case "humaneval":
            key, category, questions = record["task_id"].rpartition("/")[2], "code", [record["prompt"]]
        case "mbpp":
            key, category, questions = record["task_id"], "code", [record["prompt"]]
        case "aime24" | "aime25":
            key, category, questions = index, "maths", [record["problem"]]
        case "livecodebench":
            key, category, questions = index, "code", [record["question_content"]]
            more = _livecodebench_format(record["starter_code"])
        case "swe_bench_lite":
            key, category, questions = record["instance_id"], "code", [record["problem_statement"]]
        case "alpaca":
            given = f"\n\nInput:\n{record['input']}" if record["input"] else ""
            key, category, questions = index, "chat", [record["instruction"] + given]
        case "quick":
            key, category, questions = record["id"], record["category"], record["turns"]
        case _:
            key, category, questions = record["question_id"], record["category"], record["turns"]
    return Row(f"{suite}/{key}", category, tuple(worded(WORDING[suite], question, **more) for question in questions))


def _livecodebench_format(starter_code: str) -> dict[str, str]:
    if starter_code:
        return {"how": "Use the following code structure:", "code": starter_code}
    return {"how": "Write your code in the following format:", "code": "# YOUR CODE HERE"}
