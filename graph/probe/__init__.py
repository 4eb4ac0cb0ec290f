"""The graph that asks whether a model that ranks leans to a group."""
