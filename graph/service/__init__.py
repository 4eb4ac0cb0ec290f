"""Fair search over HTTP: an API, live streams and a page over the graph, and runs that are kept.

Routes, the proxy, queues, the database, access and metrics live here. How to search does not: the
graphs do that, and only the command imports this package.

The way of a ``POST /v1/search``, from the socket to the answer:

1. ``http.access.Guard`` admits the key, counts the request, and reads the body whole.
2. A route of ``http.runs`` parses it into a ``RunRequest`` of ``engine.requests``.
3. ``engine.engine.Engine.checked`` checks that against the limits and what is offered
   (``engine.checking``), and makes the graph's query and context of it.
4. ``runs.manager`` waits for a slot and begins an ephemeral run; one that is to be kept goes into
   ``store`` with its request, and a queue hands it to a process, where it is checked again.
5. ``engine.engine.Engine.execute`` lends the search engine, takes the graph for it and the model,
   and runs it (``graph.stream``).
6. ``runs.doing`` makes events of what the graph tells. Those of a run that is kept are stored
   first.
7. ``http.runs`` sends the events, or waits for the last one and sends its result.
"""
