"""Fair search over HTTP: an API, live streams and a page over the graph, and runs that are kept.

Routes, the proxy, queues, the database, access and metrics live here. How to search does not: the
graphs do that, and only the command imports this package.
"""
