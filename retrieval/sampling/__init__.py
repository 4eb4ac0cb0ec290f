"""Stochastic rankings: samples from a distribution over the orders of documents."""
