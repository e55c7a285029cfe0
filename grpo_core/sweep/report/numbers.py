"""Figures as people read them; the words, the tables and the pictures share these, so that they cannot disagree."""

import math

from grpo_core.sweep.statistics.paired import PairedEstimate

UNKNOWN = "-"
PLUS_MINUS = "± half the 95 % interval over {seeds} seeds"
"""What ± is wherever a report has one: in words, tables and pictures; the width that the intervals in brackets have, too."""


def number(value: float, digits: int = 3) -> str:
    """Return a figure to so many significant digits, at most `digits` decimals above 1; a dash where it is unknown.

    >>> number(0.71234), number(0.00012345), number(12345.6), number(float("nan")), number(-0.0)
    ('0.712', '0.000123', '12346', '-', '0')
    """
    if math.isnan(value):
        return UNKNOWN
    if value == 0 or math.isinf(value):
        return f"{abs(value) if value == 0 else value:g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(decimals, 8)}f}" if abs(value) >= 1e-5 else f"{value:.{digits - 1}e}"


def plain(value: float) -> str:
    """Return a figure with three decimals where that says enough, so that figures side by side line up.

    >>> plain(0.7), plain(0.0004), plain(123.4)
    ('0.700', '0.000400', '123')
    """
    if math.isnan(value):
        return UNKNOWN
    if value == 0 or 0.001 <= abs(value) < 10:
        return f"{value:.3f}"
    return number(value)


def with_half_width(mean: float, half: float) -> str:
    """Return `0.712 ± 0.010`, ± as in `PLUS_MINUS`; the mean alone where one seed leaves no interval."""
    return plain(mean) if math.isnan(half) else f"{plain(mean)} ± {plain(half)}"


def interval(mean: float, low: float, high: float) -> str:
    """Return a mean with its interval, all with the decimals that the width calls for; without it where there is none.

    >>> interval(0.1234, 0.05, 0.19), interval(0.1234, float("nan"), float("nan")), interval(0.00012, 0.00008, 0.00016)
    ('0.123 [0.050, 0.190]', '0.123', '0.00012 [0.00008, 0.00016]')
    """
    if math.isnan(low):
        return plain(mean)
    largest = max(abs(mean), abs(low), abs(high))
    decimals = 3 if largest == 0 or largest >= 0.01 else min(1 - math.floor(math.log10(largest)), 10)
    decimals = decimals if largest < 10 else 2 if largest < 100 else 0
    return f"{_signed(mean, decimals)} [{_signed(low, decimals)}, {_signed(high, decimals)}]"


def estimate_text(estimate: PairedEstimate, sign: int = 1) -> str:
    """Return a difference with its 95 % interval, turned round for `sign` -1."""
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return interval(sign * estimate.mean, low, high)


def p_text(p: float) -> str:
    """Return a p-value to two digits, never as a bare 0 unless it is one.

    >>> p_text(0.0234), p_text(1e-9), p_text(1.0), p_text(0.0)
    ('0.023', '< 0.0001', '1', '0')
    """
    if math.isnan(p):
        return UNKNOWN
    return "< 0.0001" if 0 < p < 1e-4 else f"{p:.2g}"


def p_words(p: float) -> str:
    """Return a p-value as a sentence has it.

    >>> p_words(0.0234), p_words(1e-9)
    ('p = 0.023', 'p < 0.0001')
    """
    text = p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(12.3), duration(200), duration(7300), duration(float("nan"))
    ('12 s', '3 min 20 s', '2 h 01 min', '-')
    """
    if math.isnan(seconds):
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _signed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if not float(text) else text
