"""The graph that finds out whether a model favours a group when it ranks."""
