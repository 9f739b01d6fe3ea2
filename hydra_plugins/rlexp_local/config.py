"""The launcher's config; its settings are those of the group `sweep`.

No postponed annotations here: Hydra runs plugin modules without entering them in sys.modules, where dataclasses would look for text.
"""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore


@dataclass
class RlexpLocalConf:
    """hydra/launcher=rlexp_local."""

    _target_: str = "hydra_plugins.rlexp_local.launcher.RlexpLocalLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="rlexp_local", node=RlexpLocalConf, provider="rlexp")
