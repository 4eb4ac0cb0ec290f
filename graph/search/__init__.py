"""The graph that searches fairly."""
