"""The three LangGraph graphs: search, answer and probe; and the service.

The order of steps and their state live here, and what leads requests to them. How a model is asked
lives in ``agents``, and how documents are found and ordered in ``retrieval``.
"""
