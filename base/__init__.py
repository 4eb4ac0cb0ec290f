"""What every room stands on: errors, settings, telemetry, retries, event loops, statistics."""
