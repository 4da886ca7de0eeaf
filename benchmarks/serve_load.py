"""A served strategy under load, with clients that go away: do the others get their answers, and is everything given back?

    python benchmarks/serve_load.py --baseline http://HOST:PORT --served http://HOST:PORT [--requests 200] [--output FILE]

Both servers run the same model in fp32 (python -m harness.serve strategy=baseline model.dtype=float32 port=...). The
baseline's answers are taken first. Then the served strategy gets the same prompts with the same limits, which differ from
request to request, --concurrency at a time, and --cancelled of the clients close their connection before their first chunk
or after some. Every other answer must equal the baseline's, and what a cancelled client had received must be its beginning.
Afterwards the server's own gauges must say that nothing runs, nothing waits and no cache block is in use, and it must still
answer. Needs the extra `openai`. Exit status 1 when one of these does not hold. No times are reported: this is about answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import aiohttp  # noqa: E402

from benchmarks.stored import write  # noqa: E402
from harness.engines.openai import OpenAIEngine  # noqa: E402
from harness.engines.openai.client import Client  # noqa: E402
from harness.engines.openai.prometheus import Counters, gauge  # noqa: E402
from harness.engines.openai.stream import Answer, Events, ServerFailed, StreamCut  # noqa: E402
from harness.errors import UserError, kind_and_line  # noqa: E402
from harness.decoding import request_of  # noqa: E402
from harness.records import Request, Sampling  # noqa: E402
from harness.suites import SuiteConfig, load  # noqa: E402

SUITES = ("gsm8k", "humaneval", "mt_bench")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
SETTLED_S = 60


@dataclass(frozen=True)
class Asked:
    """``leave_after``: the chunks after which the client goes away, 0 while it waits for the first; ``None``: it stays."""

    prompt: str
    request: Request
    leave_after: int | None = None


def main() -> int:
    arguments = read_arguments()
    try:
        report = run(arguments)
    except UserError as error:
        print(f"serve_load: {error}", file=sys.stderr)
        return 2
    write(arguments.output, report)
    print(json.dumps({"output": str(arguments.output), "holds": report["holds"], **report["answers"]}))
    return 0 if all(report["holds"].values()) else 1


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", required=True, help="address of the baseline's server")
    parser.add_argument("--served", required=True, help="address of the strategy's server")
    parser.add_argument("--served-as", default="", help="what it serves, for the record: strategy and options")
    parser.add_argument("--model", type=Path, default=None, help="the model's folder or GGUF file (default: SmolLM2-135M)")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--cancelled", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=24, help="the longest limit; limits go down to a third of it")
    parser.add_argument("--suites", nargs="+", default=SUITES)
    parser.add_argument("--suite-root", default=None, help="folder of the prompt files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "serve" / "load.json")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> dict:
    addresses = {"baseline": arguments.baseline, "served": arguments.served}
    source = {"path": str(arguments.model)} if arguments.model else {"source": "harness.models.smollm2.fetch"}
    engine = OpenAIEngine({**source, "dtype": "float32"}, dict.fromkeys(addresses, {}), base_url=addresses)
    asked = questions(engine, arguments)
    servers = engine._servers
    if not all(server.dialect.ids and server.counts for server in servers.values()):
        raise UserError("both servers must send token ids and have vLLM's counters; take vLLM")

    plain = [replace(a, leave_after=None) for a in asked]
    wanted = asyncio.run(ask_all(servers["baseline"], plain, arguments.concurrency))[0]
    before = servers["served"].counters()
    given, most = asyncio.run(ask_all(servers["served"], asked, arguments.concurrency))
    after = settled(engine._client, servers["served"].base_url)
    again = asyncio.run(ask_all(servers["served"], plain[:1], 1))[0]
    return report_of(arguments, engine, asked, wanted, given, most, after, again, servers["served"].counters().since(before))


def questions(engine: OpenAIEngine, arguments: argparse.Namespace) -> list[Asked]:
    """First turns, the suites in turns; who goes away, and when, is a function of the seed."""
    share = -(-arguments.requests // len(arguments.suites))
    rows = [load(SuiteConfig(name=name, limit=share, root=arguments.suite_root)).rows for name in arguments.suites]
    rows = [row for together in zip(*rows) for row in together][: arguments.requests]
    generator, longest = random.Random(arguments.seed), arguments.max_new_tokens
    leavers = set(generator.sample(range(len(rows)), arguments.cancelled))
    asked = []
    for number, row in enumerate(rows):
        limit, leave_after = generator.randint(max(1, longest // 3), longest), generator.randint(0, 3)
        # Those who leave asked for long answers, so that they leave in the middle.
        sampling = Sampling(max_new_tokens=longest if number in leavers else limit)
        request = request_of(engine, [{"role": "user", "content": row.turns[0]}], sampling, alone=False)
        asked.append(Asked(row.id, request, leave_after if number in leavers else None))
    return asked


async def ask_all(server, asked: list[Asked], concurrency: int) -> tuple[list[Answer | str], dict[str, float]]:
    """Every answer, or why there is none; and the highest value of each gauge meanwhile."""
    room, most = asyncio.Semaphore(concurrency), dict.fromkeys(GAUGES, 0.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=1200)) as session:

        async def one(question: Asked) -> Answer | str:
            async with room:
                return await ask(session, server, question)

        watching = asyncio.create_task(watch(session, server.base_url, most))
        answers = await asyncio.gather(*map(one, asked))
        watching.cancel()
    return list(answers), most


async def ask(session, server, question: Asked) -> Answer | str:
    answer, events = Answer(), Events()
    body = server.dialect.body(server.model, question.request, question.request.sampling.max_new_tokens)
    try:
        async with session.post(server.base_url + server.dialect.path, json=body) as response:
            if response.status != 200:
                return f"HTTP {response.status}: {(await response.text())[:200]}"
            if question.leave_after == 0:
                response.close()
                return answer
            async for received in response.content.iter_any():
                for data in events.feed(received):
                    answer.take(data, 0.0)
                if question.leave_after is not None and len(answer.chunks) >= question.leave_after:
                    response.close()  # the connection, in the middle of the answer
                    return answer
        answer.check()
        return answer
    except (aiohttp.ClientError, ServerFailed, StreamCut, TimeoutError) as error:
        return kind_and_line(error)


async def watch(session, base_url: str, most: dict[str, float]) -> None:
    while True:
        async with session.get(f"{base_url}/metrics") as response:
            text = await response.text()
        for name in most:
            most[name] = max(most[name], gauge(text, name) or 0.0)
        await asyncio.sleep(0.5)


def settled(client: Client, base_url: str) -> dict[str, float | None]:
    """The gauges once they are all 0, or as they are after ``SETTLED_S``."""
    for _ in range(2 * SETTLED_S):
        text = client.get(f"{base_url}/metrics")
        found = {name: gauge(text, name) for name in GAUGES}
        if not any(found.values()):
            return found
        time.sleep(0.5)
    return found


def report_of(arguments, engine, asked, wanted, given, most, after, again, counted: Counters) -> dict:
    stayed = [number for number, question in enumerate(asked) if question.leave_after is None]
    differing = [asked[n].prompt for n in stayed if not same(given[n], wanted[n])]
    left = [n for n in range(len(asked)) if asked[n].leave_after is not None]
    prefixes = [n for n in left if isinstance(given[n], Answer) and given[n].tokens == wanted[n].tokens[: len(given[n].tokens)]]
    cut_short = [n for n in left if isinstance(given[n], Answer) and not given[n].ended]
    holds = {
        "every_other_answer_equals_the_baselines": not differing,
        "what_cancelled_clients_had_received_is_a_prefix_of_it": len(prefixes) == len(left),
        "clients_left_in_the_middle": len(cut_short) >= 0.9 * len(left),
        "server_was_full": most["num_requests_running"] + most["num_requests_waiting"] >= 0.75 * min(arguments.concurrency, len(asked)),
        "cache_was_in_use": most["kv_cache_usage_perc"] > 0,
        "no_request_and_no_cache_block_is_left": set(after.values()) == {0.0},
        "server_answers_afterwards": same(again[0], wanted[0]),
    }
    return {
        "holds": holds,
        "answers": {
            "requests": len(asked), "concurrency": arguments.concurrency, "cancelled": len(left), "left_in_the_middle": len(cut_short),
            "compared": len(stayed), "identical": len(stayed) - len(differing),
            "output_tokens_compared": sum(len(given[n].tokens) for n in stayed if isinstance(given[n], Answer)),
        },
        "served_as": arguments.served_as,
        "differing": differing,
        "failed": {asked[n].prompt: given[n] for n in range(len(asked)) if isinstance(given[n], str)},
        "most_during_the_load": most,
        "after_the_load": after,
        "counted_by_the_server": asdict(counted),
        "settings": engine.settings(),
        "suites": list(arguments.suites), "max_new_tokens": arguments.max_new_tokens, "seed": arguments.seed,
        "machine": platform.platform(), "python": platform.python_version(),
    }  # fmt: skip


def same(given: Answer | str, wanted: Answer | str) -> bool:
    return isinstance(given, Answer) and isinstance(wanted, Answer) and given.tokens == wanted.tokens


if __name__ == "__main__":
    sys.exit(main())
