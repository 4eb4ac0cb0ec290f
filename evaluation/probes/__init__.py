"""Probes: does a model, asked to rank, lean toward a group?"""
