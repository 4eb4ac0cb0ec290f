"""Chat models: how they are opened, asked, cached and traced."""
