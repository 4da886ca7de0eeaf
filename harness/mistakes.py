"""Turns what Hydra raises about a command line into the one line that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from harness.errors import UserError, kind_and_line
from harness.options import choose

_SEARCH_PATH = re.compile(r"provider=hydra\.searchpath.*path=(\S+) is not available")

_NO_CHOICE = "Config group override must be a string or a list"
_FLAGS = ("Only one of --run, --multirun", "The --resolve flag can only be used")

_COMPLETION = "Expecting one subcommand"
_FULL_KEY = re.compile(r"^full_key: (\S+)$", re.MULTILINE)

_SWEEP = re.compile(r"Ambiguous value for argument '(.*)'|Sweep parameters '(.*)' requires")


def explain(error: BaseException, overrides: Sequence[str] = ()) -> str | None:
    """One line about ``error``, or ``None`` when it is no mistake of the user's but a fault of the program."""
    chain = list(_causes(error))
    for link in chain:
        if isinstance(link, UserError):
            return _one_line(str(link))
    for link in chain:
        if isinstance(link, UserWarning) and (found := _SEARCH_PATH.search(str(link))):
            return f"hydra.searchpath={found[1]}: is not there; name a folder (file://FOLDER) or an installed package that has an __init__.py (pkg://a.b)"
        if isinstance(link, MissingConfigException):
            return _missing(link)
        if isinstance(link, (ConfigAttributeError, ConfigKeyError)):
            return _unknown_key(link, overrides)
        if isinstance(link, OverrideParseException):
            reason = str(link.message).splitlines()[0]
            return _one_line(f"{link.override}: {reason}; write KEY=VALUE, with quotes around special characters")
        if isinstance(link, ValueError) and str(link).startswith(_NO_CHOICE):
            given = next((o for o in overrides if o.endswith("=null")), "a group")
            return f"{given}: a group needs one of its choices; see python -m harness --help"
        if isinstance(link, ValueError) and str(link).startswith(_FLAGS):
            return _one_line(f"{link}; leave one out")
        if isinstance(link, ValueError) and str(link).startswith(_COMPLETION):
            return "--shell-completion: needs install=SHELL or uninstall=SHELL; see python -m harness --hydra-help"
        if isinstance(link, InstantiationException) and link.__cause__ and (key := _FULL_KEY.search(str(link))):
            return _one_line(f"{key[1]}: cannot be built ({kind_and_line(link.__cause__)})")
    if sweep := _SWEEP.search(str(error)):
        return f"{sweep[1] or sweep[2]}: several values for one key: add --multirun to measure each, give one, or quote the text"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return _one_line(f"{str(chain[0]) or str(chain[-1])}; see python -m harness --help")
    return None


def _missing(error: MissingConfigException) -> str:
    """An option that its group does not have, or a whole configuration that is not there."""
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if error.options and group:
        return f"{group}={choice}: unknown {group}; {choose(choice, error.options)}"
    return _one_line(str(error).split("Config search path")[0]) + "; see python -m harness --help"


def _unknown_key(error: OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """A key that the configuration lacks. OmegaConf knows the node that was asked, hence the keys it has."""
    full = str(error.full_key or error.key)
    parent, _, last = full.rpartition(".")
    node = error.parent_node
    known = [str(k) for k in node if k != "hydra"] if isinstance(node, DictConfig) and not node._is_none() else []
    known = [key for key in known if not key.startswith("_")]
    given = next((o for o in overrides if o.lstrip("+~").split("=")[0] == full), full)
    prefix = f"{parent}." if parent else ""
    return _one_line(f"{given}: unknown key {full}; {choose(prefix + last, [prefix + key for key in known])}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _one_line(text: str) -> str:
    return " ".join(text.split())
