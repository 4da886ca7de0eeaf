"""What there is and whether it is right: the rows of ``list`` and ``verify``, as plain data and as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.errors import UserError
from harness.suites.catalogue import FETCHABLE, HUB_SUITES, SUITES, HubSet, PromptFile
from harness.suites.files import read_pinned
from harness.suites.hub import read_files, require_format
from harness.suites.seen import Seen, recall_all
from harness.suites.selection import path_of

LIST_COLUMNS = ("suite", "rows", "licence", "pinned", "here", "source")
VERIFY_COLUMNS = ("suite", "rows", "state", "checksum", "reason")


def catalogue(root: Path) -> list[dict[str, Any]]:
    """One entry per suite, and ``gsm8k_train``.

    ``rows`` counts a file's records, ``asked`` the prompts of the suite; ``pin`` says what ``sha256`` is of, or that
    only a ``revision`` from the user can pin it, then the ones that were seen are in ``seen``.
    """
    entries = [_pinned_entry(name, entry, root) for name, entry in {**SUITES, **FETCHABLE}.items()]
    records = [record for _, record in recall_all(root) if isinstance(record, Seen)]
    return entries + [_hub_entry(name, entry, root, records) for name, entry in HUB_SUITES.items()]


def _pinned_entry(name: str, entry: PromptFile, root: Path) -> dict[str, Any]:
    return {
        "suite": name,
        "rows": entry.rows,
        "asked": entry.asked or entry.rows,
        "licence": entry.licence,
        "pin": entry.pin,
        "sha256": entry.sha256,
        "commit": entry.commit or None,
        "seen": [],
        "here": _path(name, entry, root).is_file(),
        "source": "this project" if entry.bundled else f"github.com/{entry.repository}",
        "url": None if entry.bundled else entry.url,
    }


def _hub_entry(name: str, entry: HubSet, root: Path, records: list[Seen]) -> dict[str, Any]:
    seen = [record for record in records if record.name == name]
    return {
        "suite": name,
        "rows": entry.rows,
        "asked": entry.rows,
        "licence": entry.licence,
        "pin": "revision needed",
        "sha256": None,
        "commit": None,
        "seen": [asdict(record) for record in seen],
        "here": any(all(path.is_file() for path in record.paths(root)) for record in seen),
        "source": entry.source,
        "url": None,
    }


def listed(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of ``catalogue`` as the table shows it: in few words, checksums and commits by their first digits."""
    rows = str(entry["rows"]) if entry["asked"] == entry["rows"] else f"{entry['asked']} of {entry['rows']}"
    seen = ", ".join(f"{record['revision'][:12]}: {record['sha256'][:12]}" for record in entry["seen"])
    pinned = f"seen {seen}" if seen else entry["pin"]
    if entry["sha256"]:
        commit = f", commit {entry['commit'][:8]}" if entry["commit"] else ""
        pinned = f"{entry['pin']} {entry['sha256'][:12]}{commit}"
    return {**entry, "rows": rows, "pinned": pinned}


def verified(root: Path) -> Iterator[dict[str, Any]]:
    """One entry per suite found under ``root``; ``state`` is ``right`` or ``wrong``, and of those seen also ``gone`` or
    ``unread``: there is no package here that reads its format."""
    for name, entry in {**SUITES, **FETCHABLE}.items():
        path = _path(name, entry, root)
        if not path.exists():
            continue
        try:
            rows = len(read_pinned(entry, path))
            right = rows == entry.rows
            reason = "" if right else f"{entry.rows} rows expected"
            yield _verdict(name, rows, "right" if right else "wrong", entry.sha256, reason)
        except UserError as error:
            yield _verdict(name, None, "wrong", entry.sha256, str(error))
    for path, record in recall_all(root):
        yield _verify_seen(path, record, root)


def _verify_seen(path: Path, record: Seen | UserError, root: Path) -> dict[str, Any]:
    if isinstance(record, UserError):
        return _verdict(path.stem, None, "wrong", "", str(record))
    name = f"{record.name}@{record.revision}"
    if record.name not in HUB_SUITES:
        return _verdict(name, None, "wrong", record.sha256, f"{path}: no suite of this name; remove it")
    missing = [str(file) for file in record.paths(root) if not file.is_file()]
    if missing:
        return _verdict(name, None, "gone", record.sha256, f"not there any more: {', '.join(missing)}")
    try:
        for file in record.files:
            require_format(file)
    except UserError as error:
        return _verdict(name, None, "unread", record.sha256, str(error))
    try:
        records, sha256 = read_files(HUB_SUITES[record.name], record.paths(root))
    except UserError as error:
        return _verdict(name, None, "wrong", record.sha256, str(error))
    if sha256 != record.sha256:
        return _verdict(name, len(records), "wrong", record.sha256, f"found sha256 {sha256}, seen before {record.sha256}")
    right = len(records) == record.rows
    reason = "" if right else f"{record.rows} rows expected"
    return _verdict(name, len(records), "right" if right else "wrong", sha256, reason)


def _verdict(suite: str, rows: int | None, state: str, checksum: str, reason: str) -> dict[str, Any]:
    return {"suite": suite, "rows": rows, "state": state, "checksum": checksum, "reason": reason}


def print_table(entries: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """As wide as the terminal, and nothing cut: long text goes over several lines."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 170
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        short = column in ("suite", "rows", "here", "state")
        table.add_column(column, no_wrap=short, overflow="fold", justify="right" if column == "rows" else "left")
    for entry in entries:
        table.add_row(*(_text(entry[column]) for column in columns))
    console.print(table)


def _text(value: Any) -> str:
    words = {True: "yes", False: "no", None: "–"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    return text.replace("[", r"\[")


def _path(name: str, entry: PromptFile, root: Path) -> Path:
    return path_of(name, root) if name in SUITES else root / entry.file
