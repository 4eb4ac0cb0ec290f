"""Colours of plots: apart for those who do not see all colours, and legible on light and dark."""

from __future__ import annotations

__all__ = ["FAMILIES", "GREY", "INK", "LINES", "PAPER", "RULE"]

INK = "#1b1b1f"
PAPER = "#fffffe"
RULE = "#d5d5dc"
"""These three follow the page where a plot is part of one, so no series has them but by intent."""

GREY = "#a6a6b0"
"""What stands behind: legible on light and on dark."""

_BLUE, _VERMILION, _GREEN = "#0072b2", "#d55e00", "#009e73"
_PURPLE, _ORANGE, _SKY = "#cc79a7", "#e69f00", "#56b4e9"

LINES = tuple(
    (colour, marker)
    for marker, colours in (
        ("o", (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)),
        ("s", (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)),
    )
    for colour in colours
)
"""Colour and marker of each line of a plot (the palette of Okabe & Ito)."""

FAMILIES = {
    "plain": ("plain retrieval", INK, "s"),
    "baseline": ("re-ranking alone", _PURPLE, "D"),
    "fair-qr": ("FAIR-QR's loop", _VERMILION, "^"),
    "fairqr": ("fairqr's loop", _BLUE, "o"),
}
"""What a system's kind is called in a legend, its colour and its marker."""
