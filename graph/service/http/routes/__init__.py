"""The routes: to start runs, read them, list offers, speak as OpenAI does, and operate."""
