"""The settings file: where it is, and what is in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from fairqr.base.errors import ConfigError, one_line

CONFIG_VARIABLE = "FAIRQR_CONFIG"


def config_path() -> Path:
    """Return the path of the settings file, whether the file exists or not."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return Path(platformdirs.user_config_dir("fairqr", appauthor=False), "fairqr.toml")


def contents_of(file: Path, check: Callable[[str, dict[str, Any]], None]) -> dict[str, Any]:
    """Return what is in a settings file; nothing if the default file does not exist.

    A file is read once in a process, so that the settings do not change during a run.

    Args:
        file: As :func:`config_path` returns it.
        check: Is called with the file's name and its contents, and raises if they are wrong.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    # Unlike Path.exists, os.path.exists does not fail if we may not read the folder.
    if not os.environ.get(CONFIG_VARIABLE) and not os.path.exists(file):
        return {}
    return _read(str(file), check)


@lru_cache(maxsize=8)
def _read(name: str, check: Callable[[str, dict[str, Any]], None]) -> dict[str, Any]:
    import tomllib

    try:
        contents = tomllib.loads(Path(name).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"The settings file {name} cannot be read: {error.strerror}; fix that, or name "
            f"another file in {CONFIG_VARIABLE}."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"The settings file {name} is not UTF-8; save it as text in UTF-8."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        why = one_line(error).rstrip(".")
        raise ConfigError(f"The settings file {name} is not valid TOML: {why}; fix it.") from None
    check(name, contents)
    return contents
