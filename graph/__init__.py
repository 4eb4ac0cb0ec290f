"""The three LangGraph graphs: search, answer and probe; and the service."""
