"""Language models and neural models as rankers: listwise, pairwise and pointwise."""
