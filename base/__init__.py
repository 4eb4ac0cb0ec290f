"""What all other packages use: errors, settings, telemetry, retries, event loops, statistics."""
