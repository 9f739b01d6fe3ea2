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


def folders() -> dict[str, Path]:
    """Folders of YAML by the name of who brings them: plugins, and RLEXP_CONF."""
    found = {f"rlexp-plugin:{name}": folder for name, folder in sorted(_folders.items()) if folder is not None}
    extra = os.environ.get("RLEXP_CONF")
    return {**found, "RLEXP_CONF": Path(extra).resolve()} if extra else found


def install() -> None:
    """Load the plugins and let Hydra find their YAML; idempotent."""
    from rlexp.config.search_path import add_search_path  # imports Hydra, which ranks never do

    load()
    add_search_path()
