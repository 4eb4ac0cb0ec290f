"""Everything that talks to a language model: chat models, refiners, generators, rankers, tuning."""
