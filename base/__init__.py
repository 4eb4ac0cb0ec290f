"""What all other packages use: errors, settings, telemetry, retries, event loops, weights.

Only what several floors need lives here, such as files and secrets. Nothing here knows of
documents, groups, models' replies or HTTP routes.
"""
