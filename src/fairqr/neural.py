"""Models of transformers, loaded once in a process and run beside the event loop.

What needs the extra ``neural`` imports torch and transformers through here alone, so that a missing
extra, an unknown name or a hub that cannot be reached is said in one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fairqr.errors import ModelUnavailableError, one_line

__all__ = ["Pretrained", "load_pretrained"]

T = TypeVar("T")

PROBE_SECONDS = 4.0
"""How long the hub may take to answer whether it is there, for each step of the connection."""

PLAIN_ENCODER = "AutoModel"
"""The kind of which only the hidden states are used."""

# A model that nobody holds any more gives its memory to the next.
_loaded: WeakValueDictionary[tuple[str, str], Pretrained] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Pretrained:
    """A model in evaluation mode, with its tokenizer.

    Attributes:
        name: A hub id or a folder.
        model: Of transformers, on ``device``.
        tokenizer: Of transformers.
        device: ``cuda`` where there is one, else ``cpu``.
    """

    name: str
    model: Any
    tokenizer: Any
    device: str
    # A thread of its own: what waits for its turn holds none of those that others need.
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "fairqr-neural"), repr=False
    )

    async def run(self, work: Callable[[], T]) -> T:
        """Do work with the model on a thread, one at a time, without gradients."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _ungraded, work)


def _ungraded(work: Callable[[], T]) -> T:
    import torch

    with torch.inference_mode():
        return work()


async def load_pretrained(kind: str, name: str) -> Pretrained:
    """Load a model and its tokenizer; the same one is loaded once.

    Args:
        kind: The class of transformers that loads it, e.g.
            ``AutoModelForSequenceClassification``.
        name: A folder, or an id at the hub, from where transformers downloads it on first use.
            Where the hub cannot be reached, what was downloaded before is taken.

    Raises:
        ModelUnavailableError: The extra ``neural`` is missing, there is no such model, or it is one
            of another kind.
    """
    return await asyncio.to_thread(_load, kind, name)


def _load(kind: str, name: str) -> Pretrained:
    with _lock:
        found = _loaded.get((kind, name))
        if found is None:
            found = _loaded[kind, name] = _new(kind, name)
        return found


def _new(kind: str, name: str) -> Pretrained:
    try:
        import torch
        import transformers
    except ImportError:
        raise ModelUnavailableError(
            f"The model {name} needs torch and transformers: run `pip install 'fairqr[neural]'`."
        ) from None
    missed = None
    try:
        with _quiet(transformers):
            missed = _why_no_hub(name)
            local = missed is not None
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=local)
            model, report = getattr(transformers, kind).from_pretrained(
                name, local_files_only=local, output_loading_info=True
            )
    except Exception as error:
        if missed is not None and isinstance(error, OSError):
            raise ModelUnavailableError(
                f"The model {name} was never downloaded as a whole, and the hub cannot be asked "
                f"for it ({missed}); mend that, or name a folder with the model."
            ) from None
        raise ModelUnavailableError(
            f"The model {name} cannot be loaded as {kind} ({one_line(error, 200)}); check its name "
            "or folder, and that the hub can be reached if it was never downloaded."
        ) from None
    # Transformers fills what the files lack with random numbers. Encoders are saved without a
    # pooler and used without; some classifiers judge by it.
    missing = sorted(report.get("missing_keys", ()))
    if kind == PLAIN_ENCODER:
        missing = [key for key in missing if "pooler" not in key]
    if missing:
        raise ModelUnavailableError(
            f"The model {name} has no weights '{missing[0]}', which {kind} needs; choose one that "
            "was trained for this."
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Pretrained(name, model.to(device).eval(), tokenizer, device)


def _why_no_hub(name: str) -> str | None:
    """Return why the hub cannot be asked for a model; None where it can, or need not be.

    One request finds out. Without it, each file would be tried again and again for half a minute.
    """
    from huggingface_hub import constants, utils

    hub: Any = utils  # what it has is not typed as exported
    if Path(name).is_dir():
        return None
    try:
        hub.validate_repo_id(name)
    except ValueError:  # nothing that a hub could have: loading says so at once
        return None
    try:
        answer = hub.get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # no network, no such host, or HF_HUB_OFFLINE is set
        return f"{constants.ENDPOINT}: {one_line(error, 150)}"
    if answer.status_code >= 500:
        return f"{constants.ENDPOINT} answered {answer.status_code}"
    return None


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep notices of the hub off stderr, and all of transformers where nobody watches."""
    from huggingface_hub import utils

    hub: Any = utils
    hub_logging, logging = hub.logging, transformers.utils.logging
    hub_verbosity, verbosity = hub_logging.get_verbosity(), logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    hub_logging.set_verbosity_error()
    if watched := sys.stderr.isatty():
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
