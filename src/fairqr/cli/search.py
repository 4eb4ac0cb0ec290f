"""The command ``fairqr search``."""


def search() -> None:
    """Search."""
