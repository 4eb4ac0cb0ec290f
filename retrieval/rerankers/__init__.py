"""Re-rankers with one interface: baselines from the literature, and our fair steps."""
