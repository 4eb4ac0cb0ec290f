"""Encoders: what turns texts into vectors."""
