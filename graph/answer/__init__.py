"""The graph that answers a question from randomly drawn rankings."""
