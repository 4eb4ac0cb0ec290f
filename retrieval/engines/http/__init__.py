"""Any search endpoint that returns JSON."""
