"""Names of components: name -> (config dataclass, "module:object").

The dataclass is known when a command line is parsed; the object is imported only when the component is built, so configuring
never imports torch. Registering also keeps the dataclass for Hydra: always as the schema node `_schema_<group>_<name>`, which
YAML files extend, and as the selectable option `<group>/<name>` when no YAML of that name exists. Hydra gets them by `publish`,
so that processes that never compose, such as the ranks of a run, do not import it.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

_kept: dict[tuple[str | None, str], tuple[type, str | None]] = {}
_waiting: list[tuple[str, type, str | None, str | None]] = []
_published = False


class RegistryError(LookupError):
    """An unknown or doubly registered component name."""


def conf_dir() -> Path:
    """The folder of the shipped YAML: inside the package in a wheel, beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "conf", here.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise RuntimeError("the shipped conf/ folder is missing: reinstall rlexp")


def store(name: str, node: type, group: str | None = None, package: str | None = None) -> None:
    """Keep a structured config for Hydra. One that is kept already costs nothing: components are registered before every composition."""
    if _kept.get((group, name)) == (node, package):
        return
    _kept[group, name] = (node, package)
    _waiting.append((name, node, group, package))
    if _published:
        publish()


def publish() -> None:
    """Give Hydra what is kept, and from now on everything at once, whichever of the supported Hydra versions runs. Call it before Hydra composes."""
    from hydra.core.config_store import ConfigStore

    global _published
    _published = True
    replace = {"replace": True} if "replace" in inspect.signature(ConfigStore.store).parameters else {}
    for name, node, group, package in _waiting:
        ConfigStore.instance().store(name=name, node=_open_dicts(node), group=group, package=package, provider="rlexp", **replace)
    _waiting.clear()


def _open_dicts(config: type) -> DictConfig:
    """The config with its free-form dicts open: `data.params={min_digits: 1}` adds a key, where Hydra would ask for a `+`."""
    node = OmegaConf.structured(config)
    for name, hint in get_type_hints(config).items():
        if get_origin(hint) is dict and name != "terms":
            OmegaConf.set_struct(node._get_node(name), False)
    return node


@dataclasses.dataclass(frozen=True)
class Entry:
    """One registered component."""

    name: str
    config: type
    target: str
    origin: str


class Registry:
    """The components of one config group.

    group: the Hydra group. multi: several options can be chosen at once (`reward=[a,b]`); each lands under
    `<group>.terms.<name>`.
    """

    def __init__(self, group: str, multi: bool = False) -> None:
        self.group = group
        self.multi = multi
        self._entries: dict[str, Entry] = {}

    def register(self, name: str, config: type, target: str) -> None:
        """Add a component. config: its dataclass, with a `name` field. target: "module:object", imported at build only.

        Raises RegistryError when another module already registered the name.
        """
        if not dataclasses.is_dataclass(config):
            raise RegistryError(f"{self.group}={name}: {config!r} is not a dataclass")
        old = self._entries.get(name)
        if old is not None and old.target != target:
            raise RegistryError(f"{self.group}={name} is already registered by {old.origin} ({old.target}); choose another name than that for {target}")
        self._entries[name] = Entry(name, config, target, config.__module__)
        store(f"_schema_{self.group}_{name}", config)
        if not (conf_dir() / self.group / f"{name}.yaml").is_file():
            package = f"{self.group}.terms.{name}" if self.multi else None
            store(name, config, group=self.group, package=package)

    def entry(self, name: str) -> Entry:
        """The entry of a name; raises RegistryError with suggestions for an unknown one."""
        if name in self._entries:
            return self._entries[name]
        close = difflib.get_close_matches(str(name), self._entries, 3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise RegistryError(f"unknown {self.group} {name!r}{hint} (known: {', '.join(self.names())})")

    def config_for(self, name: str) -> type:
        """The config dataclass of a name."""
        return self.entry(name).config

    def load(self, name: str) -> Any:
        """Import and return the object a name stands for."""
        entry = self.entry(name)
        module, _, attribute = entry.target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._entries)


MODELS = Registry("model")
PEFTS = Registry("peft")
DATA = Registry("data")
REWARDS = Registry("reward", multi=True)
GENERATORS = Registry("generation")
ROLLOUTS = Registry("rollout")
ALGORITHMS = Registry("algorithm")
LOSSES = Registry("loss")
OPTIMIZERS = Registry("optimizer")
TRACKERS = Registry("tracker", multi=True)
STRATEGIES = Registry("strategy")
CLUSTERS = Registry("cluster")

REGISTRIES: dict[str, Registry] = {
    registry.group: registry
    for registry in (MODELS, PEFTS, DATA, REWARDS, GENERATORS, ROLLOUTS, ALGORITHMS, LOSSES, OPTIMIZERS, TRACKERS, STRATEGIES, CLUSTERS)
}
