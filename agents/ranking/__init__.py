"""Language models and neural models as rankers: of a list, of pairs, of one document."""
