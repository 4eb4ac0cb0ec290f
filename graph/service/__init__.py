"""Fair search over HTTP: an API, live streams and a page over the graph, and runs that are kept."""
