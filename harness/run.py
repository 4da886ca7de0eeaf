"""One run: from a checked plan to a folder with cells, figures, a table and a plot."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from inspect import isclass

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from harness import busy, environment, interrupt, resume, suites
from harness.companions import add_companions
from harness.control import examine
from harness.engines.base import Engine
from harness.errors import UserError
from harness.finish import figures_of, finish, setting_of, show
from harness.measuring import Schedule, measure, warm_up
from harness.metrics import decode_tokens_per_s
from harness.progress import progress
from harness.room import check_room
from harness.sampler import Sampler
from harness.schemas import MeasureConfig, Plan, leave_out_unserved, read
from harness.store import SAMPLES, Cell, Key, Store
from harness.under_load import measure_under_load
from harness.under_load import warm_up as warm_up_under_load


def run(config: DictConfig, engine: Engine | None = None) -> int:
    """Measure what ``config`` describes and print the table; the exit status is what is returned.

    ``engine``: one that ``build_engine`` made of this very configuration, so that it need not be loaded again.
    """
    store = None
    with open_dict(config):
        folder = config.pop("resume", None)
    if folder is not None:
        store, config = resume.reopen(str(folder), HydraConfig.get().overrides.task)
    others = busy.OtherWork()
    plan = read(config)
    if add_companions(config):
        plan = read(config)
    if unserved := leave_out_unserved(config):
        plan = read(config)
    interrupt.as_exception()
    suite = suites.load(plan.suite)
    schedule = _schedule(plan, suite.rows)
    if store is not None and (summary := resume.nothing_left(store, schedule, partial(figures_of, store, plan))):
        print(f"nothing is left to do in {store.folder}", file=sys.stderr)
        return show(store, plan, summary)
    engine = engine or build_engine(plan)
    said = [check_room(engine, suite.rows, plan.sampling.max_new_tokens)]
    seeds = {"sampling": plan.sampling.seed, "measure": plan.measure.seed}
    about_suite = suite.to_json() | {"history": plan.suite.history}
    found = environment.describe(engine.settings(), about_suite, seeds)
    found["cpu"]["other_work_cores"] = others.cores()
    said.append(busy.told(found["cpu"]))
    if store is None:
        store = Store.create(plan.measure.root, plan.label, datetime.now())
        store.write_text("config.yaml", OmegaConf.to_yaml(config, resolve=True))
        store.lock()
    session, changed = resume.record(store, found)
    finished = resume.finished_cells(store, schedule)
    for line in [*filter(None, said), f"{schedule.cells - len(finished)} cells into {store.folder}"]:
        print(line, file=sys.stderr)
    interrupted, margins = False, {}
    meanwhile = busy.OtherWork()
    try:
        _measure(engine, schedule, store, plan.measure, finished, session)
        if setting := setting_of(plan, found["engine"]):
            margins = examine(engine, schedule, store, setting, session)
    except KeyboardInterrupt:
        interrupted = True
    if not getattr(engine, "concurrent", False):  # a server's work is not other work
        if line := busy.told_after(meanwhile.cores(), found["cpu"]["usable_cores"]):
            print(line, file=sys.stderr)
    told = engine.remarks() if hasattr(engine, "remarks") else []
    return finish(store, plan, interrupted, margins, [*unserved, *told, *_remarks(session, changed, finished)])


def build_engine(plan: Plan) -> Engine:
    """The engine, with its target and every strategy loaded: what can be wrong with them is found here."""
    config = plan.engine.copy()
    with open_dict(config):
        del config["name"]
    if isclass(factory := get_object(config._target_)):  # then it can be said before the target is loaded
        _require_able(factory, plan)
    engine = instantiate(config, model=plan.model, strategies=plan.arms, _recursive_=False)
    _require_able(engine, plan)
    return engine


def _require_able(engine: Engine | type[Engine], plan: Plan) -> None:
    """Raise ``UserError`` unless the engine can take as many requests at once as are asked for."""
    name, asked, concurrent = plan.engine.name, plan.measure, getattr(engine, "concurrent", False)
    if asked.load and not concurrent:
        raise UserError(f"engine={name}: answers one request at a time; for measure.concurrency and measure.rate take engine=openai")
    if asked.batch > 1 and not hasattr(engine, "decode_batch"):
        here = f", or with this one measure.concurrency={asked.batch}" if concurrent else ""
        raise UserError(f"engine={name}: takes no batch of requests; for measure.batch={asked.batch} take engine=torch{here}")


def _schedule(plan: Plan, rows) -> Schedule:
    measured = plan.measure
    return Schedule(
        rows, list(plan.arms), plan.sampling, measured.repetitions, measured.seed, plan.history_of, measured.round_times, measured.batch
    )


def _measure(
    engine: Engine, schedule: Schedule, store: Store, asked: MeasureConfig, finished: dict[Key, Cell], session: int
) -> None:
    """Every missing cell, on disk as soon as it is done."""
    missing = schedule.cells - len(finished)
    if not missing:
        return
    if asked.load:
        warm_up_under_load(engine, schedule, asked.load, asked.warmup)
        measured = ([cell] for cell in measure_under_load(engine, schedule, asked.load, finished, session, store.append_block))
    else:
        warm_up(engine, schedule, asked.warmup)
        measured = measure(engine, schedule, finished, session)
    with Sampler(store.folder / SAMPLES) as sampler, progress(missing) as advance:
        for cells in measured:
            throttled = sampler.throttled(cells[0].started_at)
            store.append(*(replace(cell, throttled=throttled) for cell in cells))
            for table in engine.costs() if hasattr(engine, "costs") else ():
                store.append_costs({"session": session, **table})
            for cell in cells:
                advance(_words(cell))


def _words(cell: Cell) -> str:
    name = f"{cell.key.prompt} {cell.key.strategy}"
    if cell.failure:
        return f"{name}: failed"
    speed = decode_tokens_per_s(cell.decoded)
    return name if speed is None else f"{name}: {speed:.0f} tokens/s"


def _remarks(session: int, changed: list[str], finished: dict[Key, Cell]) -> list[str]:
    """What a reader of a resumed run must know."""
    if not session:
        return []
    lines = [f"resumed: {len(finished)} cells are from before, session {session} measured the rest"]
    failed = sum(cell.failure is not None for cell in finished.values())
    if failed:
        lines.append(f"{failed} cells had failed before and stay failed; a new run would measure them anew")
    if changed:
        lines.append(f"since the first session these changed, so speeds may differ: {', '.join(changed)}")
    return lines
