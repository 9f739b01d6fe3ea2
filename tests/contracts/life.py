"""Another life of a run, from its saved config: what the same command does after Hydra has composed it. python -m contracts.life FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

from rlexp.config.saved import load_config
from rlexp.launch.start import start

if __name__ == "__main__":
    sys.exit(start(load_config(Path(sys.argv[1]) / "config.yaml"), []))
