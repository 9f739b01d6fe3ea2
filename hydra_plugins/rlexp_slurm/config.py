"""The launcher's config; its settings are those of the group `cluster`.

No postponed annotations here: Hydra runs plugin modules without entering them in sys.modules, where dataclasses would look for text.
"""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore


@dataclass
class RlexpSlurmConf:
    """hydra/launcher=rlexp_slurm."""

    _target_: str = "hydra_plugins.rlexp_slurm.launcher.RlexpSlurmLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="rlexp_slurm", node=RlexpSlurmConf, provider="rlexp")
