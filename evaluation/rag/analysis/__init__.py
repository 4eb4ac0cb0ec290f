"""From the records of an experiment to means, curves and tests."""
