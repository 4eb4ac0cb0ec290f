"""Prompts as versioned files: how they are read, checked and rendered."""
