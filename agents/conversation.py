"""One question to a model: what is sent, what is made of the answer, and its trace."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from fairqr.agents.endpoint import Endpoint
from fairqr.agents.failures import no_answer_within
from fairqr.agents.forms import Form
from fairqr.agents.question import Messages, Question
from fairqr.agents.replies import Reply, Usage, failed
from fairqr.agents.spans import input_messages, model_span, outcome, output_messages
from fairqr.agents.streaming import Telling
from fairqr.base.errors import ModelError
from fairqr.base.telemetry import Span

__all__ = ["converse"]


async def converse(
    endpoint: Endpoint,
    question: Question,
    form: Form,
    deadline: float | None,
    telling: Telling | None = None,
) -> tuple[Reply, float]:
    """Ask when it is our turn, and once more with the error where the reply is of another form.

    Args:
        endpoint: Which model.
        question: What to ask.
        form: What is wanted back.
        deadline: Seconds from now after which to give up, the wait for our turn included. Where
            None, or later, the model has twice the time of a request from when it is our turn.
        telling: Told each piece of a text as it comes.

    Returns:
        The reply, and the milliseconds that the model took for it.

    Raises:
        ModelUnavailableError: There is no such model; see :meth:`Endpoint.client`.
    """
    longest = 2 * endpoint.timeout
    arrived = time.perf_counter()
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(deadline):
                await stack.enter_async_context(endpoint.turn())
        except TimeoutError:
            message = no_answer_within(endpoint.name, deadline or 0)
            return Reply("timeout", message=message), 0.0
        began = time.perf_counter()
        left = longest if deadline is None else deadline - (began - arrived)
        reply = await _traced(endpoint, question, form, min(longest, left), telling)
        return reply, (time.perf_counter() - began) * 1000


async def _traced(
    endpoint: Endpoint, question: Question, form: Form, limit: float, telling: Telling | None
) -> Reply:
    prompt, temperature = question.prompt, question.temperature
    with model_span(
        "chat",
        endpoint.provider,
        endpoint.model,
        prompt,
        base_url=endpoint.base_url,
        temperature=endpoint.temperature(
            prompt.defaults.temperature if temperature is None else temperature
        ),
        max_tokens=1 if form.wanted == "choice" else question.reply_tokens,
        seed=question.seed,
        stream=True if telling else None,
    ) as step:
        step.set("gen_ai.output.type", "json" if form.wanted == "object" else "text")
        reply = await _asked(endpoint, question, form, step, limit, telling)
        outcome(step, reply.status, reply.usage)
        return reply


async def _asked(
    endpoint: Endpoint,
    question: Question,
    form: Form,
    step: Span,
    limit: float,
    telling: Telling | None,
) -> Reply:
    def on_retry(number: int, error: BaseException) -> None:
        kind = type(error).__name__
        step.event("fairqr.retry", **{"fairqr.attempt": number, "error.type": kind})

    messages: Messages = question.prompt.render(question.values)
    usage = Usage()
    wrong = ""
    try:
        async with asyncio.timeout(limit):
            for _ in range(2 if form.may_ask_again else 1):
                step.content("gen_ai.input.messages", input_messages(messages))
                asked = time.perf_counter()
                answer = await endpoint.send(
                    messages,
                    question,
                    form.wanted,
                    limit=limit,
                    on_retry=on_retry,
                    telling=telling,
                )
                usage += answer.usage
                if answer.finish_reason:
                    step.set("gen_ai.response.finish_reasons", [answer.finish_reason])
                if answer.model:
                    step.set("gen_ai.response.model", answer.model)
                if answer.id:
                    step.set("gen_ai.response.id", answer.id)
                if telling is not None and telling.began is not None:
                    seconds = telling.began - asked
                    step.set("gen_ai.response.time_to_first_chunk", seconds)
                reason = answer.finish_reason
                step.content("gen_ai.output.messages", output_messages(answer.text, reason))
                if answer.declined:
                    message = f"The model {endpoint.name} declined to answer."
                    return Reply("refused", message=message, usage=usage)
                try:
                    return Reply("ok", form.read(answer), usage=usage)
                except ValueError as error:
                    wrong = str(error)
                    messages = [*messages, *_complaint(answer.text, wrong)]
                    step.event("fairqr.unusable_reply")
    except ModelError as error:
        usage += Usage(model_calls=1)
        return failed(error, usage)
    except TimeoutError:
        usage += Usage(model_calls=1)
        return Reply("timeout", message=no_answer_within(endpoint.name, limit), usage=usage)
    message = f"The model {endpoint.name} gave no usable reply: {wrong}."
    return Reply("parse_error", message=message, usage=usage)


def _complaint(text: str, wrong: str) -> Messages:
    return [
        {"role": "assistant", "content": text[:2000]},
        {
            "role": "user",
            "content": f"That cannot be used: {wrong}. Answer again with only the JSON object.",
        },
    ]
