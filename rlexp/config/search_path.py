"""Hydra's search path, with the YAML folders of plugins and of RLEXP_CONF."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from rlexp import plugins


class RlexpSearchPath(SearchPathPlugin):
    """Adds the folders after the shipped one, so a user's file needs a new name."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """file:// rather than pkg://: the latter needs an `__init__.py` in every folder on Hydra 1.4."""
        for provider, folder in plugins.folders().items():
            search_path.append(provider=provider, path=f"file://{folder}")


def add_search_path() -> None:
    """Make it known to Hydra; idempotent."""
    Plugins.instance().register(RlexpSearchPath)
