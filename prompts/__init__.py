"""Prompts as versioned files: reads, checks and renders them."""
