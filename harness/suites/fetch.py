"""Brings suites' files from where they are published: checked before they are stored, and stored whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import UserError, one_line
from harness.suites.catalogue import FETCHABLE, HUB_SUITES
from harness.suites.download_progress import Advance, download_progress
from harness.suites.files import pinned, read_pinned
from harness.suites.hub import read_files, require_format
from harness.suites.seen import Seen, agree, recall, stem

TIMEOUT_S = 30
_CHUNK = 1 << 18
# The largest pinned file has 4 MB; a server that sends much more sends something else.
_PINNED_LIMIT = 64 << 20


def fetch(name: str, root: Path, mirror: str | None = None) -> str:
    """Store the pinned file ``name`` in ``root``; what was done, in words. A right file that is there stays.

    ``mirror`` takes the place of the address's scheme and host. Raises ``UserError`` when nothing right comes.
    """
    entry = FETCHABLE[name]
    target = root / entry.file
    try:
        return f"{name}: {len(read_pinned(entry, target))} rows, there already: {target}"
    except UserError:
        pass  # missing or wrong: what comes takes its place
    url = _mirrored(entry.url, mirror)
    with _workplace(root) as folder:
        part = folder / entry.file
        _download(url, part, _PINNED_LIMIT)
        try:
            rows = len(pinned(entry, part.read_bytes(), url))
        except UserError as error:
            raise UserError(f"{error}; nothing was stored") from error
        _place(part, target)
    return f"{name}: {rows} rows, checksum right: {target}"


def fetch_hub(name: str, root: Path, revision: str | None, paths: list[str], mirror: str | None = None) -> str:
    """Store files of a hub data set at ``revision`` under ``root``, and the checksum seen; what was done, in words.

    ``paths``: files of its repository; empty: those that the catalogue names.
    """
    entry = HUB_SUITES[name]
    if not revision:
        raise UserError(
            f"{name}: revision needed: no checksum of it is known here; add --revision COMMIT of {entry.source}"
        )
    wanted = paths or list(entry.paths)
    folder = root / stem(name, revision)
    targets = [folder / path.rpartition("/")[2] for path in wanted]
    for target in targets:
        require_format(target.name)
    if rows := _rows_there(name, root, revision, targets):
        return f"{name}: {rows} rows, there already: {folder}"
    with _workplace(root) as workplace:
        parts = [workplace / target.name for target in targets]
        for path, part in zip(wanted, parts, strict=True):
            _download(_mirrored(entry.url(revision, path), mirror), part)
        records, sha256 = read_files(entry, parts)
        agree(root, Seen.now(root, name, revision, sha256, len(records), targets))
        for part, target in zip(parts, targets, strict=True):
            _place(part, target)
    return f"{name}: {len(records)} rows, sha256 {sha256} seen and kept: {folder}"


def _rows_there(name: str, root: Path, revision: str, targets: list[Path]) -> int | None:
    """How many rows lie there, if they are those that were seen before."""
    before = recall(root, name, revision)
    if before is None or not all(target.is_file() for target in targets):
        return None
    try:
        records, sha256 = read_files(HUB_SUITES[name], targets)
    except UserError:
        return None
    return len(records) if sha256 == before.sha256 else None


def _mirrored(url: str, mirror: str | None) -> str:
    if mirror is None:
        return url
    if urlsplit(mirror).scheme not in ("http", "https", "file"):
        raise UserError(f"--mirror {mirror}: must start with https://, http:// or file://")
    return mirror.rstrip("/") + urlsplit(url).path


@contextmanager
def _workplace(root: Path) -> Iterator[Path]:
    """A folder in ``root``, so that what is finished can be moved in one step; it is gone afterwards."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".fetch-", dir=root))
    except OSError as error:
        raise UserError(f"{root}: cannot be written ({error.strerror}); choose another folder with --root") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(url: str, part: Path, limit: int | None = None) -> None:
    try:
        with (
            urllib.request.urlopen(url, timeout=TIMEOUT_S) as response,
            part.open("wb") as file,
            download_progress(part.name, response.headers.get("Content-Length")) as advance,
        ):
            _copy(response, file, url, limit, advance)
    except urllib.error.HTTPError as error:
        raise UserError(f"{url}: the server answered {error.code} {error.reason}; nothing was stored") from error
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise UserError(f"{url}: cannot be reached ({reason}); is there a network? see --mirror") from error
    except TimeoutError as error:
        raise UserError(f"{url}: nothing came for {TIMEOUT_S} s; try again, or see --mirror") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise UserError(f"{url}: download failed ({reason}); nothing was stored") from error


def _copy(response, file, url: str, limit: int | None, advance: Advance) -> None:
    total, announced = 0, response.headers.get("Content-Length")
    while chunk := response.read(_CHUNK):
        total += len(chunk)
        if limit is not None and total > limit:
            raise UserError(f"{url}: more than {limit >> 20} MiB came; this is not the file; nothing was stored")
        file.write(chunk)
        advance(len(chunk))
    if announced is not None and announced.isdecimal() and total != int(announced):
        raise UserError(f"{url}: broke off after {total} of {announced} bytes; nothing was stored; try again")


def _place(part: Path, target: Path) -> None:
    try:
        target.parent.mkdir(exist_ok=True)
        part.replace(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror}); choose another folder with --root") from error
