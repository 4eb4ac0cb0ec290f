"""From the records of an experiment to means, curves, tests and a diagnosis."""
