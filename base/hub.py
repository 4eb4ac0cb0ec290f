"""The model hub: whether it can be reached, and how its notices are kept off stderr.

Import this only where torch and transformers are imported anyway; see :mod:`fairqr.base.neural`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairqr.base.errors import one_line

PROBE_SECONDS = 4.0
"""The timeout of the request that checks the hub, for each step of the connection."""


def why_no_hub(name: str) -> str | None:
    """Return why the hub cannot be asked for a model, or None if it can or need not be asked.

    One request finds out. Without it, transformers would retry each file for half a minute.
    """
    from huggingface_hub import constants, utils

    hub: Any = utils  # its types do not export what it has
    if Path(name).exists():
        return None
    try:
        hub.validate_repo_id(name)
    except ValueError:  # not a valid id; loading says so at once
        return None
    try:
        answer = hub.get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # no network, no such host, or HF_HUB_OFFLINE is set
        return f"{constants.ENDPOINT}: {one_line(error, 150)}"
    if answer.status_code >= 500:
        return f"{constants.ENDPOINT} answered {answer.status_code}"
    return None


@contextlib.contextmanager
def quiet(transformers: Any, *, local: bool = False) -> Iterator[None]:
    """Keep notices of the hub off stderr, and those of transformers if stderr is no terminal.

    Args:
        transformers: The module.
        local: Whether the model is on this machine. Then there is no download to show, so
            transformers is silent on a terminal, too.
    """
    from huggingface_hub import utils

    hub: Any = utils
    hub_logging, logging = hub.logging, transformers.utils.logging
    hub_verbosity, verbosity = hub_logging.get_verbosity(), logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    hub_logging.set_verbosity_error()
    if watched := sys.stderr.isatty() and not local:
        bars = False
    else:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    try:
        yield
    finally:
        hub_logging.set_verbosity(hub_verbosity)
        if not watched:
            logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def quiet_gguf() -> Iterator[None]:
    """Keep the progress bar of the GGUF conversion and the warnings of gguf and peft off stderr.

    The bar is tqdm's own; the switch of transformers does not reach it.
    """
    conversion: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar = getattr(conversion, "tqdm", None)
    if bar is not None:
        conversion.tqdm = functools.partial(bar, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bar is not None:
            conversion.tqdm = bar
