"""Runs work of a transformers model on the model's thread, and stops it when nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from fairqr.agents.models.failures import no_answer_within
from fairqr.agents.models.replies import Reply, Usage, failed
from fairqr.base.errors import FairqrError, ModelError, one_line
from fairqr.base.neural import Pretrained

T = TypeVar("T")

GoesOn = Callable[[], bool]
"""Returns whether anybody still waits; the work checks it between two tokens."""


async def run_in_process(
    name: str, pretrained: Pretrained, work: Callable[[GoesOn], T], deadline: float | None
) -> tuple[T, float]:
    """Run work on the model's thread, and return its result and the milliseconds it took.

    Args:
        name: The name of the model, for messages.
        pretrained: The model.
        work: Called once on the thread; its result is ignored after the deadline.
        deadline: Seconds from now after which to give up.

    Raises:
        ModelError: The deadline has passed, or the model failed.
        FairqrError: The work raised it.
    """
    until = None if deadline is None else time.monotonic() + deadline
    stopped = threading.Event()

    def goes_on() -> bool:
        return not stopped.is_set() and (until is None or time.monotonic() < until)

    def timed() -> tuple[T, float]:
        began = time.monotonic()
        if not goes_on():
            raise TimeoutError
        result = work(goes_on)
        if not goes_on():
            raise TimeoutError  # the result is half a reply
        return result, (time.monotonic() - began) * 1000

    try:
        async with asyncio.timeout(deadline):
            return await pretrained.run(timed)
    except TimeoutError:
        raise ModelError("timeout", no_answer_within(name, deadline or 0)) from None
    except FairqrError:
        raise
    except Exception as error:  # out of memory, or weights that do not fit the tokenizer
        message = f"The model {name} failed ({one_line(error, 200)})."
        raise ModelError("unavailable", message) from None
    finally:
        stopped.set()


def failure_in_process(error: ModelError) -> Reply:
    """Return the reply for an error of a model in this process."""
    unasked = error.status in ("invalid_request", "unsupported")
    return failed(error, Usage(model_calls=int(not unasked)))
