"""The settings file: where it is looked for, and what is in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from fairqr.base.errors import ConfigError, one_line

__all__ = ["CONFIG_VARIABLE", "config_path", "contents_of"]

CONFIG_VARIABLE = "FAIRQR_CONFIG"


def config_path() -> Path:
    """Return where the settings file is looked for, whether it is there or not."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return Path(platformdirs.user_config_dir("fairqr", appauthor=False), "fairqr.toml")


def contents_of(file: Path, check: Callable[[str, dict[str, Any]], None]) -> dict[str, Any]:
    """Return what is in a settings file; nothing where there is none at the usual place.

    A file is read once in a process: what is configured does not change under a run.

    Args:
        file: As :func:`config_path` returns it.
        check: Is called with the file's name and its contents, and raises where they are wrong.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    # Unlike Path.exists, this is no error where the folder is not for us to look into.
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
            f"The settings file {name} cannot be read: {error.strerror}; mend it, or let "
            f"{CONFIG_VARIABLE} name another."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"The settings file {name} cannot be read; save it as text in UTF-8."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        why = one_line(error).rstrip(".")
        raise ConfigError(f"The settings file {name} is no TOML: {why}; mend it.") from None
    check(name, contents)
    return contents
