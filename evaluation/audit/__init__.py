"""Audits: who gets seen in what a search engine answers, and how sure that is."""
