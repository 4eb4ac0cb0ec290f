"""Fair search over HTTP: an API, live streams and a page over the graph, and runs that are kept.

Routes, the proxy, queues, the database, access and metrics live here. How to search does not: the
graphs do that, and only the command imports this package.

What it is made of:

- ``http``: routes, access by keys, metrics. ``page``: the page in the browser. ``mcp``: tools for
  agents. ``proxy``: the door in front of an Elasticsearch.
- ``execution``: the bodies of requests (``requests``), what they may ask for (``checking``), the
  search engines, open and lent to runs (``engines``), and what runs a request (``executor``).
- ``runs``: runs that live in this process (``live``), and runs that any process may go on with
  (``queues``, ``manager``). ``slots``: how keys take turns, at runs and at the database.
- ``store``: the database of runs, events and keys.

The way of a ``POST /v1/search``, from the socket to the answer and back:

1. ``http.access.Guard`` admits the key, counts the request, and reads the body whole.
2. A route of ``http.runs`` parses it into a ``RunRequest`` and calls ``start_run``.
3. ``Executor.check`` compares that with the limits and what is offered: a ``CheckedRequest``, with
   the graph's query and context.
4. ``Runs.start_ephemeral`` waits for a slot, and starts an ``EphemeralRun``. A run that is to be
   kept goes through ``Runs.submit`` into the store; a queue hands it to a process, which claims it
   as a ``DurableRun``.
5. ``Executor.execute`` lends the search engine, takes the graph for it and the model, and runs it
   (``graph.stream``): step by step, or for its result alone where nobody follows. For a stored run,
   ``Executor.execute_stored`` checks the request again and does the same.
6. The run makes an ``Event`` of each ``RunOutput``: of a step, or of a piece of an answer. Those of
   a durable run are stored before anybody hears of them, but for pieces.
7. The route sends the events, or waits for the last one (``run_to_end``) and sends its result.
"""
