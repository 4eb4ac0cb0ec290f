"""The page that shows runs as they happen: static files, all served by the service itself."""
