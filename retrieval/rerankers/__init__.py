"""Re-rankers behind one interface: the literature's baselines and the exposure-aware step."""
