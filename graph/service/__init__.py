"""Fair search over HTTP: an API, live streams and a page over the graph, and runs that are kept.

Routes, the proxy, queues, the database, access and metrics live here. How to search does not: the
graphs do that, and only the command imports this package.

What it is made of:

- ``http``: the server, routes, access by keys, metrics. ``page``: the page in the browser. ``mcp``:
  tools for agents. ``proxy``: the door in front of an Elasticsearch.
- ``execution``: the bodies of requests (``requests``, and ``openai_requests`` in OpenAI's forms),
  what is offered (``capabilities``), whether a request fits that and the limits (``checking``), the
  search engines, open and lent to runs (``engines``), the language models (``models``), and what
  runs a request (``executor``).
- ``starting``: how a checked request becomes an ephemeral run.
- ``runs``: the runs that this process does, ``EphemeralRun`` (``live``) and ``DurableRun``
  (``durable``); what starts the first, and accepts and claims the second (``manager``); and what
  hands the second to processes (``queues``).
- ``slots``: how keys take turns at what is scarce: runs, connections to the database, computing
  (``Executor``), encoding, reading and bundling (``http.parts``).
- ``store``: the database of runs, events and keys.

The way of a ``POST /v1/search``, from the socket to the answer and back:

1. ``http.serving`` listens, and ``http.connections`` makes a scope of the bytes. It passes ``Edge``
   (headers, metrics), ``PlainErrors`` (problems for plain texts) and ``Below`` (a path of a proxy).
   ``http.access.Guard`` admits the key, counts the request, and reads the body whole.
2. A route of ``http.runs`` parses it into a ``RunRequest``. The one that waits calls
   ``run_to_end``, which calls ``start_run``; the one that streams calls ``start_run`` itself.
3. ``Executor.check`` compares it with the limits and what is offered, and makes a
   ``CheckedRequest``, with the graph's query and context.
4. ``start_run`` calls ``starting.start_checked``, which hands ``Executor.execute`` over to
   ``Runs.start_ephemeral``; that waits for a slot and starts an ``EphemeralRun``, whose ``do``
   calls ``drive`` with what ``execute`` yields. A run that is to be kept goes through
   ``Runs.accept`` into the store, and a queue hands it to a process. There ``Runs._do`` waits for a
   slot and claims it as a ``DurableRun``; its ``do`` calls ``drive`` with what
   ``Executor.execute_stored`` yields, which checks the request again and calls ``execute``.
5. ``LiveRun.drive`` takes one output after another. For them ``Executor.execute`` lends the search
   engine, takes the graph for it and the model, and runs it (``graph.stream``): step by step, or
   for its last step alone where nobody follows.
6. The run makes an ``Event`` of each step and each piece of an answer, and publishes it. An
   ephemeral run takes steps from the stream (``step_from_stream``). The steps of a durable run are
   reported by the nodes (``running.node`` calls ``step_from_node``), since LangGraph streams a step
   only after it has kept its changes; they are stored before they are published. An audit has no
   nodes: its steps come from the stream. The events ``run``, ``end`` and ``error`` are made of the
   ``Run``.
7. The route sends the events, or waits for the last one (``run_to_end``) and sends its result.

Other ways are shorter. ``http.rerank`` checks its list as a search, and re-ranks it in a slot
without a run. ``http.openai`` makes a request of a chat, and goes on at 2. An audit is checked by
``Executor.check_audit``, and always kept. A call of a tool comes through ``http.app.McpEndpoint``,
which loads ``http.mcp_endpoint``, or from stdin, to ``mcp.server``; a tool of ``mcp.tools`` makes
the ``RunRequest``, goes on at 3, always with an ephemeral run (``start_checked``), and reports its
steps as progress.
"""
