"""`reward=custom`: a function of the user, by path."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rlexp.config.errors import UserError
from rlexp.config.reward import CustomRewardConfig
from rlexp.rewards.dispatch import parameters_of


def custom(config: CustomRewardConfig) -> Callable[..., Any]:
    """The function that config.path names, with config.kwargs bound; a class is made into an object with them.

    path: FILE.py:NAME, or MODULE:NAME. Files may import their neighbours. Raises UserError when file, module or name do not exist,
    when importing fails, and for a keyword argument that the function does not take.
    """
    key = f"path={config.path}"
    function: Any = named(config.path, key)
    if not callable(function):
        raise UserError(f"{key}: {config.path.rpartition(':')[2]} is no function but {type(function).__name__}")
    _check_kwargs(function, config)
    if inspect.isclass(function):
        return _made(function, config, key)
    return functools.partial(function, **config.kwargs) if config.kwargs else function


def named(path: str, key: str) -> Any:
    """What FILE.py:NAME or MODULE:NAME names. key: what to call it in the message. Raises UserError when there is no such thing."""
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise UserError(f"{key} must be FILE.py:FUNCTION or MODULE:FUNCTION")
    module = _from_file(Path(place).expanduser(), key) if place.endswith(".py") or os.sep in place else _from_name(place, key)
    if not hasattr(module, name):
        public = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
        close = difflib.get_close_matches(name, public, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(sorted(public)) or 'none'}"
        raise UserError(f"{key}: there is no function {name} in {place}; {hint}")
    return getattr(module, name)


def _made(made_of: Callable[..., Any], config: CustomRewardConfig, key: str) -> Callable[..., Any]:
    """An object of a user's class. Raises UserError when making it fails or it cannot be called."""
    try:
        made = made_of(**config.kwargs)
    except Exception as error:
        raise UserError(f"{key}: making it with kwargs={config.kwargs} raised {type(error).__name__}: {error}") from error
    if not callable(made):
        raise UserError(f"{key}: its objects cannot be called: give the class a method __call__")
    return made


def _check_kwargs(function: Callable[..., Any], config: CustomRewardConfig) -> None:
    try:
        parameters = parameters_of(function)
    except ValueError:
        return  # a class or built-in without a readable signature says itself what it does not take
    known = {*parameters.required, *parameters.optional} - set(parameters.positional)
    unknown = [name for name in config.kwargs if name not in known]
    if unknown and not parameters.everything:
        raise UserError(f"kwargs: {config.path} takes no keyword argument {' or '.join(unknown)} (it takes {', '.join(sorted(known)) or 'none'})")


def _from_file(file: Path, key: str) -> ModuleType:
    """Import a file once, however many terms name it."""
    if not file.is_file():
        raise UserError(f"{key}: there is no file {file} (relative to {Path.cwd()})")
    file = file.resolve()
    name = f"rlexp_user_{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{key}: {file} is no Python file")
    _findable(file.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{key}: importing it raised {type(error).__name__}: {error}") from error
    return module


def _from_name(name: str, key: str) -> ModuleType:
    _findable(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(f"{key}: there is no module {error.name} (looked in {Path.cwd()} and the installed packages)") from error
        raise UserError(f"{key}: importing {name} raised {type(error).__name__}: {error}") from error


def _findable(folder: Path) -> None:
    """At the end of the path, so that a user's file never hides an installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
