"""Prompts as versioned files: reads, checks and renders them.

The files in ``templates`` and the budget of their tokens live here. Who asks a model, and reads its
reply, lives in ``agents``.
"""
