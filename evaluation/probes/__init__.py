"""Probes: does a model, asked to rank, favour a group?"""
