"""Files of a hub model in the local hub cache, with one clear error, soon, when the hub cannot be reached."""

from __future__ import annotations

import threading
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from rlexp.config.errors import UserError

REQUEST_SECONDS = 10.0
PROBE_SECONDS = 20.0
"""a name server that does not answer is not covered by the request's own deadline"""


def fetch(path: str, revision: str | None, patterns: list[str], key: str) -> Path:
    """A local folder as it is; else the hub model's files that match the patterns (without network: those already in the cache).

    key: the config key that `path` came from, for messages. Raises UserError when there is nothing to be had.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        if revision is not None:
            raise UserError(f"model.revision={revision} has no meaning for the local folder {key}={path}: leave it out")
        return local.resolve()
    try:
        validate_repo_id(path)
    except HFValidationError as error:
        raise UserError(f"{key}={path} is neither a local folder nor a valid hub id (OWNER/NAME)") from error
    commit, trouble = _ask(path, revision, key)
    try:
        return Path(snapshot_download(path, revision=commit or revision, allow_patterns=patterns, local_files_only=trouble is not None))
    except LocalEntryNotFoundError as error:
        reason = trouble or str(error).splitlines()[0]
        raise UserError(
            f"{key}={path} is no local folder and the hub cannot be reached ({reason}): give a local folder, or use model=tiny or model=smollm2_135m"
        ) from error
    except OSError as error:
        raise UserError(f"{key}={path}: the download failed ({str(error).splitlines()[0]}): try again, or give a local folder") from error


def _ask(path: str, revision: str | None, key: str) -> tuple[str | None, str | None]:
    """The commit that the revision stands for now, or why the hub cannot be reached: the libraries themselves would wait for ever."""
    if constants.HF_HUB_OFFLINE:
        return None, "HF_HUB_OFFLINE is set"
    answer: list[str | BaseException | None] = []

    def ask() -> None:
        try:
            answer.append(HfApi().model_info(path, revision=revision, timeout=REQUEST_SECONDS).sha)
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="hub probe", daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    found = answer[0] if answer else TimeoutError(f"no answer in {PROBE_SECONDS:g} s")
    if isinstance(found, GatedRepoError):
        raise UserError(f"{key}={path} is gated: accept its licence on its page and log in by `hf auth login`, or give a local folder") from found
    if isinstance(found, RevisionNotFoundError):
        raise UserError(f"model.revision={revision} does not exist in {key}={path}") from found
    if isinstance(found, RepositoryNotFoundError):
        raise UserError(f"{key}={path} is neither a local folder nor a model on the hub that this account may read: check the spelling") from found
    return (None, f"{type(found).__name__}: {found}") if isinstance(found, BaseException) else (found, None)
