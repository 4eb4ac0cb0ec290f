"""Experiments: systems compared on the topics of a collection, as a file describes them."""
