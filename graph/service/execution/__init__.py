"""From a request to the graph: what may be asked for, and what it is made of, opened once."""
