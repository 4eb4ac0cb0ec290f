"""The graph that answers from rankings that are drawn at random."""
