"""Executes the notebook over the runs and writes ``report.ipynb`` and ``report.html``."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from harness.errors import UserError
from harness.report import words
from harness.report.page import page
from harness.report.subject import read

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "report.ipynb"
NEEDED = ("papermill", "nbconvert", "ipykernel")


def make(folders: Sequence[str], output: Path | None) -> Path:
    """The report of the runs in ``folders``, in ``output`` or in the one folder that was given; returns the HTML file."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed; python -m pip install -c constraints.txt -e '.[report]'")
    subject = read(folders)
    if output is None:
        if len(folders) > 1:
            raise UserError(f"{len(folders)} folders, one report: say where it shall lie with --output DIR")
        output = Path(folders[0])
    try:
        output.mkdir(parents=True, exist_ok=True)
        executed, shown = output / "report.ipynb", output / "report.html"
        _execute(executed, folders)
        shown.write_text(page(executed, words.title(subject)), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{output}: the report cannot be written there: {error.strerror or error}") from error
    return shown


def _execute(executed: Path, folders: Sequence[str]) -> None:
    warnings.filterwarnings("ignore", module="papermill|jupyter_client|nbclient|zmq")
    import papermill
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    # The kernel is a process of its own: it must find this harness, installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        papermill.execute_notebook(
            _verbatim(NOTEBOOK), _verbatim(executed), {"runs": list(folders)}, kernel_name="python3", progress_bar=False,
            extra_arguments=["--IPKernelApp.log_level=40"],  # it would warn of every port it opens
        )
    except PapermillExecutionError as error:
        reason = " ".join(f"{error.ename}: {error.evalue}".split())
        raise UserError(f"{executed}: cell {error.exec_count} failed with {reason}; see there") from error
    except KeyError as error:  # jupyter_client.kernelspec.NoSuchKernel
        raise UserError(f"no Jupyter kernel ({error}); python -m ipykernel install --sys-prefix") from error
    except RuntimeError as error:  # the kernel died
        raise UserError(f"{executed}: the notebook's process ended early ({' '.join(str(error).split())})") from error
    _forget_paths(executed)


def _verbatim(path: Path) -> str:
    """What papermill, which fills parameters into paths, takes as this path."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _forget_paths(executed: Path) -> None:
    """Take out where this machine keeps the notebook, and when each cell ran: that is nobody's business."""
    import nbformat

    notebook = nbformat.read(executed, as_version=4)
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
    nbformat.write(notebook, executed)
