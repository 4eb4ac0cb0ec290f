"""Numbers as text, rounded to what they can tell."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.base.statistics import Interval

__all__ = ["change", "count", "difference", "p_value", "span", "spread", "value"]

MINUS = "−"


def value(number: float | None) -> str:
    """Write the value of a measure, with four decimals as the field does."""
    return "–" if number is None else _without_zero_sign(f"{number:.4f}")


def difference(number: float | None) -> str:
    """Write a difference of two values, with its sign."""
    return "–" if number is None else _signed(f"{number:+.4f}")


def span(interval: Interval | None) -> str:
    """Write an interval; nothing where there is none."""
    if interval is None:
        return ""
    low, high = (_without_zero_sign(f"{end:.3f}") for end in (interval.low, interval.high))
    return f"[{low}, {high}]"


def change(ratio: float | None) -> str:
    """Write a relative change in percent, with its sign."""
    return "–" if ratio is None else _signed(f"{100 * ratio:+.1f}%")


def p_value(number: float | None) -> str:
    """Write a p value."""
    if number is None:
        return "none"
    return "< 0.0001" if number < 0.0001 else f"{number:.4f}"


def spread(amounts: Sequence[float]) -> str:
    """Write amounts such as tokens or milliseconds, alike and as exactly as the largest needs."""
    largest = max(amounts)
    whole = largest >= 100 or all(amount == int(amount) for amount in amounts)
    decimals = 0 if whole else 1 if largest >= 10 else 2
    return " / ".join(f"{amount:,.{decimals}f}" for amount in amounts)


def count(number: int, one: str, many: str = "") -> str:
    """Write a number of things."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _without_zero_sign(text: str) -> str:
    """Use the minus of mathematics; a rounded zero has none."""
    return text.replace("-", "" if not text.strip("-0.") else MINUS)


def _signed(text: str) -> str:
    """Use the sign of mathematics; a rounded zero has none."""
    return text.lstrip("+-") if not text.strip("+-0.%") else text.replace("-", MINUS)
