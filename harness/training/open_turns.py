"""Beginnings of user questions that a target finishes itself when it is started inside an open user turn.

Each text goes right after the start of a user turn (``<|im_start|>user\\n`` in ChatML). What the target writes to the
end of the turn is a question in the target's own manner, and so is its answer: the drafter trains on what it will meet.
Written for this project; no text of a benchmark is among them, and the function names are none that HumanEval asks for.
"""

from __future__ import annotations

_SOLVE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"

# Code, as HumanEval words it: an import or none, then the start of a signature. Without an import HumanEval leaves two
# empty lines, and so does _humaneval_like.
_SIGNATURES = (
    "",
    "from typing import List\n\n\ndef ",
    "from typing import Dict, List\n\n\ndef ",
    "from typing import List, Optional\n\n\ndef ",
    "from typing import List, Tuple\n\n\ndef ",
    "import math\n\n\ndef ",
    "import re\n\n\ndef ",
    "from collections import Counter\n\n\ndef ",
    "def ",
    "def is_",
    "def count_",
    "def find_",
    "def get_",
    "def sum_of_",
    "def remove_",
    "def max_",
    "def check_",
    "def all_",
    "def sort_",
    "def next_",
    "def split_",
    "def string_",
    "def rotate_left(",
    "def count_words(text",
    "def running_average(numbers: List[float])",
    "def moving_sum(values, window",
    "def is_leap_year(year: int) -> bool:\n    \"\"\"",
    "def merge_intervals(intervals",
    "def flatten_nested(items",
    "def second_largest(numbers: list[int]) -> int:\n    \"\"\"",
    "def swap_case_of_words(sentence: str) -> str:\n    \"\"\"",
    "def digit_product(n: int) -> int:\n    \"\"\"",
    "def longest_run(values",
    "def group_by_length(words: List[str])",
    "def binary_search_index(items, wanted",
    "def roman_numeral(n",
    "def caesar_shift(text: str, offset: int) -> str:\n    \"\"\"",
    "def transpose_table(rows",
    "def unique_in_order(items",
    "def matching_pairs(a, b",
    "def collatz_length(n: int)",
    "def parse_time(text: str)",
    "def chunk_list(items: list, size: int)",
    "def missing_number(nums",
    "def interleave(first: str, second: str)",
    "def every_third(lst: list)",
    "def perimeter(points",
    "def count_islands(grid",
    "def balance_after(deposits: List[int], fees: List[int])",
)

_CODE = (
    "Write a Python function that",
    "Write a Python function to check whether",
    "Write a function to find",
    "Write a function to count",
    "Write a function that takes a list of",
    "Write a function to convert",
    "Write a function to remove",
    "Write a python function to calculate",
    "Write a python function to sort",
    "Write a regular expression that",
    "Implement a class for",
    "Implement a simple",
    "Write a C++ program that",
    "Write a JavaScript function that",
    "Write a SQL query that",
    "Write an HTML page with",
    "Write a shell script that",
    "Fix the bug in the following code:\n```python\n",
    "What does this code do?\n```python\n",
    "Explain the following function line by line:\n```python\ndef ",
    "How do I read a file in",
    "What is the time complexity of",
    "Given an array of integers, return",
    "Given two strings, determine",
    "def ",
    "```python\n",
    "import ",
)

_MATHS = (
    "A farmer has",
    "A baker makes",
    "A shop sells",
    "A car travels",
    "A school has",
    "A tank holds",
    "Maria bought",
    "Ben has twice as many",
    "Every day, Lucy",
    "There are 24",
    "In a class of 30 students",
    "If a worker earns",
    "Two friends share",
    "At the market, apples cost",
    "Omar read",
    "The sum of two numbers is",
    "The ratio of",
    "Find the value of",
    "Find the sum of all",
    "Find the number of ways to",
    "Solve the equation",
    "Compute $",
    "Let $f(x) =",
    "Let $x$ be",
    "What is the smallest positive integer",
    "What is the area of a triangle with",
    "What is the probability that",
    "How many positive integers",
    "A rectangle has a length of",
    "Simplify the expression",
    "Suppose that $a",
    "Calculate the",
)

# Nothing at all: whatever the target itself would ask.
_ANY = ("",)

_CHAT = (
    "Explain how",
    "Explain why",
    "What is",
    "What are the benefits of",
    "What are some ways to",
    "What is the difference between",
    "How can I",
    "How do I",
    "How does",
    "Why do",
    "Why is",
    "Can you",
    "Could you tell me",
    "Tell me about",
    "Give me five tips for",
    "Give three examples of",
    "I want to learn",
    "I am planning",
    "I'm having trouble with",
    "My friend",
    "Hi! I need help with",
    "Is it possible to",
    "Should I",
    "Who was",
    "When did",
    "Which country",
    "List the",
)

_WRITING = (
    "Write a short story about",
    "Write a poem about",
    "Write an email to",
    "Write a letter to",
    "Write a blog post about",
    "Write an essay about",
    "Write a paragraph that describes",
    "Write a product description for",
    "Write a speech for",
    "Write a review of",
    "Compose a song about",
    "Draft a message to",
    "Describe a place where",
    "Rewrite the following sentence so that it sounds more",
    "Improve the style of this text:",
    "Edit the following paragraph and correct",
    "Create a slogan for",
    "Start a story with the sentence",
)

_ROLEPLAY = (
    "Pretend that you are",
    "You are a tour guide in",
    "You are a detective who",
    "Act as a teacher and",
    "Act as a chef and",
    "Imagine that you are a",
    "Speak like a",
    "Let us play a game in which",
    "Answer as if you were",
)

_REASONING = (
    "Three boxes are labelled",
    "If all",
    "Anna is older than",
    "Suppose that every",
    "You have two ropes",
    "A man walks into",
    "Which of the following does not belong:",
    "Is this argument valid?",
    "There are five people in a row.",
    "Think step by step:",
    "Here is a riddle:",
    "If it takes",
    "Someone claims that",
)

_STEM = (
    "In biology, what",
    "In physics, the law of",
    "Explain photosynthesis",
    "Describe how a transistor",
    "What happens when an acid",
    "How do vaccines",
    "How does a bridge",
    "What is a machine learning model",
    "Outline the steps of an experiment that",
    "What forces act on",
)

_HUMANITIES = (
    "What caused the",
    "Compare the ideas of",
    "Discuss the role of",
    "What were the effects of",
    "How did trade in the",
    "Summarize the history of",
    "What is the meaning of the word",
    "Explain the economic idea of",
    "What can we learn from",
    "Describe the culture of",
)

_EXTRACTION = (
    "Extract all names from the following text:",
    "Extract the key points from this paragraph:",
    "Read the text below and answer the questions.\n\n",
    "List every date in the following passage:",
    "From the following reviews, find",
    "Turn this text into a table:",
    "Return a JSON object with",
    "Classify the following sentences as",
    "Identify the subject of",
    "Find the email addresses in",
)

_TRANSLATION = (
    "Translate the following sentence into French:",
    "Translate to Spanish:",
    "Translate this text into English:",
    "Translate German to English:",
    "Translate the word",
    "How do you say",
    "What does the French word",
)

_SUMMARY = (
    "Summarize the following text:",
    "Summarise this article in three sentences.\n\n",
    "Summarize:",
    "Give a one-sentence summary of",
    "What is the main idea of the following passage?\n\n",
    "Write a headline for this story:",
    "TL;DR:",
    "Shorten this paragraph:",
    "Answer the question with the help of the following passages.\n\n",
)


def _humaneval_like(signature: str) -> str:
    return _SOLVE + ("\n\n" + signature if signature.startswith("def ") else signature)


def _of(category: str, *groups: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((category, text) for group in groups for text in group)


# (category, text), every text once.
OPEN_TURNS: tuple[tuple[str, str], ...] = (
    _of("code", tuple(map(_humaneval_like, _SIGNATURES)), _CODE)
    + _of("maths", _MATHS)
    + _of("any", _ANY)
    + _of("chat", _CHAT)
    + _of("writing", _WRITING)
    + _of("roleplay", _ROLEPLAY)
    + _of("reasoning", _REASONING)
    + _of("stem", _STEM)
    + _of("humanities", _HUMANITIES)
    + _of("extraction", _EXTRACTION)
    + _of("translation", _TRANSLATION)
    + _of("summary", _SUMMARY)
)
