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
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fairqr.errors import ModelUnavailableError, one_line

__all__ = ["Pretrained", "load_pretrained"]

T = TypeVar("T")

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
    try:
        with _quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            model, report = getattr(transformers, kind).from_pretrained(
                name, output_loading_info=True
            )
    except Exception as error:
        raise ModelUnavailableError(
            f"The model {name} cannot be loaded as {kind} ({one_line(error, 200)}); check its name "
            "or folder, and that the hub can be reached if it was never downloaded."
        ) from None
    # Transformers fills what the files lack with random numbers. Nothing here uses a pooler.
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        raise ModelUnavailableError(
            f"The model {name} has no weights '{missing[0]}', which {kind} needs; choose one that "
            "was trained for this."
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Pretrained(name, model.to(device).eval(), tokenizer, device)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep bars and notices of transformers off a stderr that nobody watches."""
    logging = transformers.utils.logging
    if sys.stderr.isatty():
        yield
        return
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
