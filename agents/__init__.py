"""Everything that talks to a language model: chat models, refiners, generators, rankers, tuning.

The statistics of probes, which audits use too, live here. The texts of prompts live in ``prompts``,
encoders and re-rankers without a language model in ``retrieval``.
"""
