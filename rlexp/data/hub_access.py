"""Loading from the hub with one clear error, soon, when there is no network.

The libraries retry every request for half a minute and more. So one request with a deadline asks whether the dataset can be
reached; if not, they are told to use their cache only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlexp.config.errors import UserError

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
PROBE_SECONDS = 20.0
"""a name server that does not answer is not covered by the request's own deadline"""


def load_dataset(path: str, *, local: bool, **options: Any) -> Any:
    """datasets.load_dataset(path, **options). local: a folder, for which the hub is not asked.

    Raises UserError for a dataset, configuration or split that does not exist, and for a hub that cannot be reached while
    nothing is in the cache.
    """
    import datasets
    import huggingface_hub

    offline = huggingface_hub.constants.HF_HUB_OFFLINE
    reason = "HF_HUB_OFFLINE is set" if offline and not local else None
    if not (local or offline) and (trouble := _unreachable(path)):
        reason = f"the hub cannot be reached ({trouble})"
    try:
        if reason is None:
            return datasets.load_dataset(path, **options)
        with _cache_only():
            table = datasets.load_dataset(path, **options)
    except ConnectionError as error:
        raise UserError(
            f"data.path={path}: {reason or error}, and the dataset is not in the cache: check the network, or give a local folder by data.path"
        ) from error
    except Exception as error:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"data.path={path} ({_named(options)}) cannot be loaded: {message}") from error
    log.warning("%s: %s comes from the cache", reason, path)
    return table


def _unreachable(path: str) -> str | None:
    """Why the hub cannot be reached, or None. Raises UserError when it says that there is no such dataset."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    answer: list[BaseException | None] = []

    def ask() -> None:
        try:
            HfApi().dataset_info(path, timeout=REQUEST_SECONDS)
            answer.append(None)
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="hub probe", daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if not answer:
        return f"no answer in {PROBE_SECONDS:g} s"
    error = answer[0]
    if isinstance(error, GatedRepoError):
        raise UserError(f"data.path={path} is a gated dataset: ask for access on its page, then log in by `hf auth login`") from error
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        raise UserError(f"data.path={path} is neither a local folder nor a dataset of the hub that this account may read") from error
    return None if error is None else f"{type(error).__name__}: {error}"


@contextmanager
def _cache_only() -> Iterator[None]:
    """As if HF_HUB_OFFLINE were set: both libraries read it once, when they are imported."""
    import datasets
    import huggingface_hub

    places: tuple[Any, ...] = (huggingface_hub.constants, datasets.config)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _named(options: dict[str, Any]) -> str:
    keys = {"name": "data.config", "split": "data.split", "data_files": "data.data_files"}
    return ", ".join(f"{keys[name]}={value}" for name, value in options.items() if name in keys and value is not None)
