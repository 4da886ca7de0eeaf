"""``python -m harness.report`` from end to end, and its refusals."""

import json
import re
from importlib.util import find_spec

import pytest
from report_runs import save

from harness.report import command
from harness.report.__main__ import main

missing = [name for name in command.NEEDED if find_spec(name) is None]
needs_extra = pytest.mark.skipif(bool(missing), reason=f"the report extra is not installed: {', '.join(missing)}")


@needs_extra
def test_three_runs_become_one_page_that_needs_nothing_else(tmp_path, capsys):
    out = tmp_path / "an {odd} & <b>'name'"
    runs = [save(tmp_path / "{a}", differs=True), save(tmp_path / "b", budget=32, failed=True), save(tmp_path / "c", batch=4)]
    assert main([*map(str, runs), "--output", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")

    page = (out / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url|action)\s*[=(]\s*["']?(https?:)?//""", page), "nothing to load from elsewhere"
    assert "<script" not in page and "@import" not in page and "@font-face" not in page and "<link" not in page
    assert page.count("<h1>") == 1 and page.count("<h2") == 12
    assert page.count('src="data:image/png;base64,') == 8
    assert "from harness.report" not in page, "code stays in the notebook"
    assert "out of &lt;memory&gt;" in page and "A\u00a0·\u00a0ddtree" in page
    assert "ddtree (m, quick): the aggregate speedup crosses 1 at a batch of 3.1" in page and "2 of 4" in page
    assert "/somewhere/private" not in page
    assert 'name="viewport"' in page

    notebook = json.loads((out / "report.ipynb").read_text(encoding="utf-8"))
    assert all(cell.get("execution_count") for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert "papermill" not in notebook["metadata"]


def test_the_committed_notebook_is_thin_and_not_executed():
    notebook = json.loads(command.NOTEBOOK.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            assert not re.search(r"^\s*(def|for|while|class) ", "".join(cell["source"]), re.M)


def refusal(arguments, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("report: ") and error.count("\n") == 1
    return error


def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "papermill" else True)
    assert "papermill not installed" in (said := refusal([str(save(tmp_path / "run"))], capsys)) and "[report]" in said


@needs_extra
def test_refusals_take_one_line(tmp_path, capsys):
    assert "there is no such folder" in refusal([str(tmp_path / "nowhere")], capsys)
    assert "nothing was measured" in refusal([str(save(tmp_path / "none", prompts=0))], capsys)
    assert "required: RUN" in refusal([], capsys)
    assert "--output" in refusal([str(save(tmp_path / "a")), str(save(tmp_path / "b"))], capsys)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal([str(tmp_path / "a"), "--output", str(tmp_path / "file")], capsys)


@needs_extra
def test_ctrl_c_is_a_line(tmp_path, capsys, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_execute", press)
    assert main([str(save(tmp_path / "run"))]) == 130
    assert capsys.readouterr().err == "report: interrupted\n"


def test_help_names_the_extra(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert "[report]" in capsys.readouterr().out
