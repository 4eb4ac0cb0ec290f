"""Everything that talks to a language model: chat models, refiners, generators, rankers, tuning.

The statistics of what rankers prefer live here, too. The texts of prompts live in ``prompts``,
encoders and re-rankers without a language model in ``retrieval``.
"""
