"""What talks to a language model: providers, the local model, and refiners of queries."""
