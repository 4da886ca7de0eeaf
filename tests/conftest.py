"""What several test files share and what takes seconds to make."""

import logging
import os
import signal

import pytest
from hypothesis import settings

import harness  # noqa: F401  before torch, so that its threads wait as the command's do

# Tests side by side (pytest -n 2) take a core each, and so do the commands that they start: threads of several that wait for one
# another on the same cores are slower than one thread.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})

# A shell that starts the tests in the background lets them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a red run is about the change. New ones: pytest --hypothesis-profile=explore
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_pycollect_makemodule(module_path, parent):
    from interpreted import collector

    return collector(module_path, parent)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Side by side are files, in order: what a file's tests share is made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(items):
    """The kernels in Triton's interpreter take longest: side by side with the rest, not after it."""
    from interpreted import Child

    items.sort(key=lambda item: not isinstance(item, Child))


@pytest.fixture
def loggers_as_before():
    """hydra.verbose=true would have every later command of this process say all that Hydra does."""
    loggers = [logging.root, *(logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger))]
    before = [(logger, logger.level, logger.handlers[:], logger.disabled) for logger in loggers]
    yield
    for logger, level, handlers, disabled in before:
        logger.setLevel(level)
        logger.handlers[:], logger.disabled = handlers, disabled


@pytest.fixture(scope="session")
def smollm2_models():
    """SmolLM2 in fp32: ``checkpoint``, ``ours`` and Transformers' model ``theirs``."""
    from reference_models import smollm2_pair

    return smollm2_pair()


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """Random Llama (Llama-3 RoPE scaling) and Qwen3 models as Transformers saved them: folder and model by family."""
    from tiny_models import save_models

    return save_models(tmp_path_factory.mktemp("tiny"))
