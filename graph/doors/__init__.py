"""The doors for searches that already run: a list re-ranked, and a proxy."""
