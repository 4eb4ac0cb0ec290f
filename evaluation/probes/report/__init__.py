"""The report of a probe: as Markdown and as one HTML file, from the same parts."""
