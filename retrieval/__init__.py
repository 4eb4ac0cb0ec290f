"""Documents, groups, exposure, indexes and re-rankers: everything that needs no language model."""
