"""``resume=FOLDER``: a run that was killed or interrupted goes on where its store ends."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from harness import lines
from harness.errors import UserError
from harness.measuring import Schedule
from harness.schemas import GROUPS
from harness.store import BLOCKS, CELLS, CONTROL, COSTS, PLOT, SAMPLES, SUMMARY, TABLE, Cell, Key, Store, holds

# What must be as it was, or the new cells are of another measurement. Other differences are told and do not stop it.
_SAME_ENGINE = ("model_sha256", "drafters", "dtype", "device")
_SAME_SUITE = ("sha256", "prompts", "history")
_TOLD = ("git", "python", "cpu.model", "gpus.name", "gpus.driver", "torch", "packages", "engine.threads")


def reopen(folder: str, overrides: Sequence[str]) -> tuple[Store, DictConfig]:
    """The store of an unfinished run, its half-written lines cut off, and the configuration that it was started with.

    ``overrides`` are those of the command line: beside ``resume`` there may be none.
    """
    refuse_others(folder, overrides)
    path = Path(folder) / "config.yaml"
    if not holds(path.parent, path.name):
        raise UserError(f"resume={folder}: holds no config.yaml, so it is no run's folder or was killed before it began; run anew")
    store = Store(Path(folder))
    store.lock()
    environment = store.read_json("environment.json")
    if environment is not None:  # otherwise it was killed before anything was measured
        check_config(store.folder, environment)
    for name in (CELLS, CONTROL, SAMPLES, BLOCKS, COSTS):
        lines.repair(store.folder / name)
    return store, read_config(path)


def argument(folder: Path) -> str:
    """``resume=FOLDER``, in quotes where Hydra's grammar wants them."""
    text, plain = str(folder), re.fullmatch(r"[\w./-]+", str(folder), re.ASCII)
    return f"resume={text if plain else QuotedString(text, Quote.single).with_quotes()}"


def command(folder: Path) -> str:
    """What goes on with the run or the sweep in ``folder``, for a shell."""
    return shlex.join(["python", "-m", "harness", argument(folder)])


def refuse_others(folder: str, overrides: Sequence[str]) -> None:
    """Raise ``UserError`` when anything is given beside ``resume``."""
    others = [override for override in overrides if override.lstrip("+").partition("=")[0] != "resume"]
    if others:
        raise UserError(f"{others[0]}: cannot be given with resume={folder}, whose files say what is measured; leave it out")


def read_config(path: Path) -> DictConfig:
    """A run's resolved configuration. Raises ``UserError`` when the file is damaged."""
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # YAML can be wrong in many ways
        raise UserError(f"{path}: is damaged ({' '.join(str(error).split())[:120]}); run anew") from error
    whole = isinstance(config, DictConfig) and all(isinstance(config.get(group), DictConfig) for group in GROUPS)
    if not whole:
        raise UserError(f"{path}: is no run's configuration: it needs the groups {', '.join(GROUPS)}; run anew")
    return config


def check_config(folder: Path, environment: Mapping[str, Any]) -> None:
    """Raise ``UserError`` unless ``environment`` is one, and config.yaml the file that it was written with."""
    for group in ("engine", "suite"):
        if not isinstance(environment.get(group), Mapping):
            raise UserError(f"{folder / 'environment.json'}: says nothing of the {group}; put it back, or run anew")
    if environment.get("config_sha256") != _config_sha256(folder):
        raise UserError(f"{folder / 'config.yaml'}: is not the one that the run began with; put it back, or run anew")


def _config_sha256(folder: Path) -> str:
    path = folder / "config.yaml"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def finished_cells(store: Store, schedule: Schedule) -> dict[Key, Cell]:
    """What need not be measured again. Raises ``UserError`` for cells that the schedule does not have, and for damage."""
    deque(store.cells(CONTROL), maxlen=0)  # read after the last cell; what is wrong there is said before the first
    deque(lines.read(store.folder / SAMPLES), maxlen=0)
    store.costs()
    found = {cell.key: cell for cell in store.cells()}
    strangers = found.keys() - set(schedule.keys())
    if strangers:
        raise UserError(f"{store.folder / CELLS}: {min(strangers)} is none of this run's cells; it is another run's file")
    return found


def nothing_left(store: Store, schedule: Schedule, figures: Callable[[list[Cell]], Any]) -> dict[str, Any] | None:
    """The summary of a run that is finished; ``None`` where something is still to be measured or written.

    ``figures`` works out what stands under ``strategies``: a summary that says something else is written anew.
    """
    try:
        summary = store.read_json(SUMMARY) or {}
    except UserError:  # damaged: it is written anew
        return None
    written = all((store.folder / name).is_file() for name in (TABLE, PLOT)) and summary.get("interrupted") is False
    if not written or len(finished := finished_cells(store, schedule)) != schedule.cells:
        return None
    right = summary.get("strategies") == figures(list(finished.values())) and _are_texts(summary.get("notes"))
    return summary if right else None


def _are_texts(notes: Any) -> bool:
    return isinstance(notes, list) and all(isinstance(note, str) for note in notes)


def record(store: Store, environment: dict[str, Any]) -> tuple[int, list[str]]:
    """Write ``environment`` beside those of earlier sessions: this session's number, and what differs from the first.

    Raises ``UserError`` when what is measured has changed: model, drafters, suite, dtype, device or configuration.
    """
    first = store.read_json("environment.json")
    if first is None:
        store.write_json("environment.json", {**environment, "config_sha256": _config_sha256(store.folder)})
        return 0, []
    for group, names in (("engine", _SAME_ENGINE), ("suite", _SAME_SUITE)):
        for name in names:
            was, now = first[group].get(name), environment[group].get(name)
            if was != now:
                raise UserError(f"resume={store.folder}: {group}.{name} was {was} and is now {now}; put it back, or run anew")
    session = 1 + sum(1 for _ in store.folder.glob("environment-*.json"))
    store.write_json(f"environment-{session}.json", environment)
    return session, list(_differences(first, environment))


def _differences(first: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in _TOLD:
        if _at(first, name.split(".")) != _at(now, name.split(".")):
            yield name


def _at(data: Any, names: Sequence[str]) -> Any:
    for position, name in enumerate(names):
        if isinstance(data, list):
            return [_at(item, names[position:]) for item in data]
        data = data.get(name) if isinstance(data, Mapping) else None
    return data

