"""Third-party components: packages that name themselves under the entry point group `rlexp.plugins`.

Importing the named module registers what it adds (a dataclass and a dotted target each). A `conf/` folder
beside it is searched for YAML options, and so is the folder `RLEXP_CONF`. A plugin that cannot be imported does not stop a run that
does not need it: the failure is remembered and shown when a name is unknown.
"""

from __future__ import annotations

import importlib
import os
from importlib.metadata import entry_points
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

GROUP = "rlexp.plugins"

_folders: dict[str, Path | None] = {}
_failures: dict[str, str] = {}


def load() -> None:
    """Import every installed plugin once, in the order of their names. RLEXP_PLUGIN_TRACE=1 raises an import error at once."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in _folders or entry.name in _failures:
            continue
        try:
            module = importlib.import_module(entry.module)
        except Exception as error:  # any exception of foreign code at import; shown by failure_hint()
            if os.environ.get("RLEXP_PLUGIN_TRACE"):
                raise
            _failures[entry.name] = f"{entry.module}: {type(error).__name__}: {error}"
            continue
        folder = Path(module.__file__).parent / "conf" if module.__file__ else None
        _folders[entry.name] = folder if folder is not None and folder.is_dir() else None


def loaded() -> list[str]:
    """Names of the plugins that were imported."""
    return sorted(_folders)


def failure_hint() -> str:
    """What to add to the message about an unknown name: the plugins that could not be imported, if any."""
    return "".join(f"\n     (the plugin {name} could not be imported: {reason})" for name, reason in sorted(_failures.items()))


class RlexpSearchPath(SearchPathPlugin):
    """Adds the YAML folders of plugins and of RLEXP_CONF after the shipped one, so a user's file needs a new name."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """file:// rather than pkg://: the latter needs an `__init__.py` in every folder on Hydra 1.4."""
        for name, folder in sorted(_folders.items()):
            if folder is not None:
                search_path.append(provider=f"rlexp-plugin:{name}", path=f"file://{folder}")
        if extra := os.environ.get("RLEXP_CONF"):
            search_path.append(provider="RLEXP_CONF", path=f"file://{Path(extra).resolve()}")


def install() -> None:
    """Load the plugins and let Hydra find their YAML; idempotent."""
    load()
    Plugins.instance().register(RlexpSearchPath)
