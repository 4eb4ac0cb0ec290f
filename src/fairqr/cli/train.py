"""The command ``fairqr train``: weights for re-rankers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import typer

from fairqr.base.errors import InputError
from fairqr.cli.common import NOTABLES, open_to_search, run
from fairqr.cli.options import Count


def train(
    method: str,
    *,
    output: Path,
    collection: str = NOTABLES,
    split: str | None = None,
    attribute: str = "gender",
    queries: str = "title",
    depth: Count = 200,
    target: str | None = None,
    option: list[str] | None = None,
    retriever: str = "auto",
) -> None:
    """Train a re-ranker on the judgements of a collection.

    Its weights serve searches for other topics: fairqr search --method deltr --set
    options.weights=FILE.

    Args:
        method: The re-ranker to train: deltr or dlf.
        output: The file of weights to write.
        collection: A collection with judgements: its name or its folder.
        split: Which judgements to use, if there are several sets: train or eval.
        attribute: The attribute to be fair about; gender×continent for a product.
        queries: How topics become queries: title, or title+10 with 10 keywords.
        depth: How many documents of each topic to train on.
        target: The target of the searches, which see no judgements; as in a search by default.
        option: An option of the training, such as gamma=1000.
        retriever: How to find documents, as in fairqr search.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments.specification import QueryForm
    from fairqr.evaluation.experiments.training import TRAINED, gather
    from fairqr.evaluation.experiments.training import train as fit
    from fairqr.graph.search.context import make_context
    from fairqr.retrieval.fairness.dimension import factors_of
    from fairqr.retrieval.rerankers.learning import TrainedModel

    if method not in TRAINED:
        raise InputError(
            f"The re-ranker '{method}' cannot be trained; choose {' or '.join(TRAINED)}."
        )
    try:
        form = QueryForm.parse(queries)
    except ValueError as error:
        raise InputError(f"{error}.".capitalize()) from None
    options = {}
    for text in option or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or name in options:
            raise InputError(f"'{text}' is no option, or a second one; write gamma=1000, once.")
        options[name] = value
    found = find_collection(collection, split)
    factors = factors_of(attribute)
    context = make_context(attributes=factors, intersect=len(factors) > 1, target=target)

    async def work() -> TrainedModel:
        opened = await open_to_search(found.corpus_name, retriever=retriever)
        async with contextlib.aclosing(opened) as engine:
            topics = {topic.id: topic.text(form.keywords) for topic in found.topics}
            examples = await gather(engine, topics, found.qrels, context, depth=depth)
            return await fit(method, examples, list(topics), options)

    model = run(work())
    model.save(output)
    typer.echo(f"trained on {model.topics} topics: {output}")
