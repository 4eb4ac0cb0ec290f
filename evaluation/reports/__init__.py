"""Reports of all kinds: a Markdown template with figures, written as Markdown and as one page."""
