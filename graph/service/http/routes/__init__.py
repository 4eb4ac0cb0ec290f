"""The routes: starting and reading runs, listing offers, OpenAI's API, and operation."""
