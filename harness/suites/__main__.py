"""``python -m harness.suites``: lists, fetches and verifies the files of the suites."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from harness.arguments import Parser
from harness.errors import UserError
from harness.pipe import ends_with_its_reader
from harness.suites.catalogue import FETCHABLE, HUB_SUITES
from harness.suites.fetch import fetch, fetch_hub
from harness.suites.overview import LIST_COLUMNS, VERIFY_COLUMNS, catalogue, listed, print_table, verified
from harness.suites.selection import suites_folder

DONE, WRONG_FILES, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status is what is returned."""
    try:
        with ends_with_its_reader():
            options = _parser().parse_args(arguments)
            return options.command(options, suites_folder(options.root))
    except KeyboardInterrupt:
        print("interrupted; nothing unfinished was stored", file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        return _refuse(error)


def _list(options: argparse.Namespace, root: Path) -> int:
    entries = catalogue(root)
    if options.json:
        _print_json(entries)
    else:
        print_table([listed(entry) for entry in entries], LIST_COLUMNS)
        print(f"here: in {root}. Whole checksums and addresses: --json")
    return DONE


def _verify(options: argparse.Namespace, root: Path) -> int:
    if options.root is not None and not root.is_dir():
        raise UserError(f"--root {options.root}: there is no such folder, so nothing in it can be right")
    entries = list(verified(root))
    if options.json:
        _print_json(entries)
    else:
        print_table(entries, VERIFY_COLUMNS)
        print(f"what was found in {root}")
    return WRONG_FILES if any(entry["state"] in ("wrong", "unread") for entry in entries) else DONE


def _print_json(entries: list[dict]) -> None:
    print(json.dumps(entries, indent=2, ensure_ascii=False))


def _fetch(options: argparse.Namespace, root: Path) -> int:
    if options.name in HUB_SUITES:
        print(fetch_hub(options.name, root, options.revision, options.file, options.mirror))
        return DONE
    if options.name not in (*FETCHABLE, "all"):
        known = ", ".join([*FETCHABLE, *HUB_SUITES, "all"])
        raise UserError(f"{options.name}: there is no such file to fetch; choose one of {known}")
    if options.revision or options.file:
        raise UserError(f"--revision, --file: {options.name} is pinned by its checksum and takes none")
    if options.name != "all":
        print(fetch(options.name, root, options.mirror))
        return DONE
    status = DONE
    for name in FETCHABLE:
        try:
            print(fetch(name, root, options.mirror), flush=True)
        except UserError as error:
            status = _refuse(error)
    print(f"not fetched, revision needed: {', '.join(HUB_SUITES)} (fetch NAME --revision COMMIT)")
    return status


def _refuse(error: UserError) -> int:
    print(f"harness.suites: {error}", file=sys.stderr)
    return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m harness.suites", description=__doc__.partition(": ")[2])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--root", metavar="DIR", help="folder of the files; default: suites/ in the cache folder")
    table = argparse.ArgumentParser(add_help=False, parents=[folder])
    table.add_argument("--json", action="store_true", help="print JSON and not a table")

    listing = commands.add_parser("list", parents=[table], help="all suites: source, licence, rows, pin, here or not")
    listing.set_defaults(command=_list)
    verifying = commands.add_parser(
        "verify", parents=[table], help="checksum and rows of every suite in the folder; exit status 1 if one is wrong"
    )
    verifying.set_defaults(command=_verify)
    fetching = commands.add_parser("fetch", parents=[folder], help="download one suite, or all that are pinned")
    fetching.add_argument("name", metavar="NAME", help="a suite, gsm8k_train (for training drafters), or all")
    fetching.add_argument("--mirror", metavar="URL", help="http, https or file address to put before the path upstream")
    fetching.add_argument("--revision", metavar="COMMIT", help="suites of the hub: revision of the data set, required")
    fetching.add_argument(
        "--file", metavar="PATH", action="append", default=[], help="suites of the hub: other file; may be repeated"
    )
    fetching.set_defaults(command=_fetch)
    return parser


if __name__ == "__main__":
    sys.exit(main())
