"""Blocks of the reports that are still written block by block."""
