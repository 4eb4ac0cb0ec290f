"""What was measured of models: how much their words count, what they bring, and what they cost."""
