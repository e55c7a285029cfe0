"""A colour for each run: readable on white and on black; a few can be told apart with any kind of colour vision."""

import math

FEW = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8b5a2b", "#7a68d8")
"""Okabe and Ito's colours without black, which a dark page swallows, and two that are far from them."""
LIGHTNESS = (0.52, 0.76, 0.64)
"""Of neighbours among many: a third property beside hue that tells lines apart."""
CHROMA = 0.15
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of lines, as plotly names them; more runs than `FEW` take them in turn."""


def distinct_colours(count: int) -> list[str]:
    """Return so many colours, as `#rrggbb`, no two alike.

    >>> distinct_colours(2), len(set(distinct_colours(54)))
    (['#0072b2', '#d55e00'], 54)
    """
    if count <= len(FEW):
        return list(FEW[:count])
    return [_hex(LIGHTNESS[index % len(LIGHTNESS)], 2 * math.pi * index / count) for index in range(count)]


def dash_of(index: int, count: int) -> str:
    """Return the dashes of a run's line: all are solid while colours alone tell them apart."""
    return DASHES[0] if count <= len(FEW) else DASHES[index % len(DASHES)]


def _hex(lightness: float, hue: float) -> str:
    """Return a colour of Oklab (Ottosson 2020), cut to what a screen can show.

    Args:
        lightness: perceived, 0 to 1.
        hue: in radians.
    """
    a, b = CHROMA * math.cos(hue), CHROMA * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{_byte(part):02x}" for part in linear)


def _byte(linear: float) -> int:
    """Return a part of a colour as sRGB encodes it."""
    encoded = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * min(max(encoded, 0.0), 1.0))
