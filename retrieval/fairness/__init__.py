"""The mathematics of fair rankings: exposure, divergence, targets and the objective."""
