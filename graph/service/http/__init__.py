"""HTTP: routes, access, problems, streams, and the server itself."""
