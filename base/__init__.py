"""What all other packages use: errors, settings, telemetry, retries, event loops, weights.

Only what several floors need lives here, such as files and secrets. Nothing here imports from
another floor.
"""
