"""Stands where vLLM's server stands, for tests of a launched server's life that need no model. It takes the same flags; most do nothing here."""

import os
import runpy
from pathlib import Path

if __name__ == "__main__":
    assert os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    runpy.run_path(str(Path(__file__).parents[4] / "server_fake.py"), run_name="__main__")
