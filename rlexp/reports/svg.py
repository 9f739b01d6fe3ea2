"""Line charts as inline SVG: no script, no network, sharp at any size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#64748b")
WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 24
MOST_POINTS = 300
"""Points of a line; longer series are averaged in equal pieces"""
SMOOTHED_FROM = 30
"""Points from which on a single line is also drawn smoothed"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One line of a chart. dots: few measured points, joined, instead of a dense curve. colour: None chooses one."""

    label: str
    points: Points
    dots: bool = False
    colour: str | None = None


def chart(title: str, lines: Sequence[Line], last: bool = True) -> str:
    """A figure with the lines over one pair of axes; x is the step. last: show the last value of the first line in its head. Empty without any point."""
    lines = [replace(line, points=thin(line.points)) for line in lines if line.points]
    if not lines:
        return ""
    x_axis = Axis.over([x for line in lines for x, _ in line.points], LEFT, WIDTH - RIGHT, whole=True)
    y_axis = Axis.over([y for line in lines for _, y in line.points], HEIGHT - BOTTOM, TOP)
    parts = [_grid(x_axis, y_axis)]
    colours = [line.colour or colour for line, colour in zip(lines, palette(len(lines)), strict=True)]
    for line, colour in zip(lines, colours, strict=True):
        parts.append(_line(line, colour, x_axis, y_axis, alone=len(lines) == 1))
    value = f"<i>{number(lines[0].points[-1][1])}</i>" if last else ""
    legend = (
        "".join(f'<span style="color:{colour}">● {escape(line.label)}</span>' for line, colour in zip(lines, colours, strict=True)) if len(lines) > 1 else ""
    )
    head = f"<figcaption><b>{escape(title)}</b>{value}</figcaption>" + (f'<div class="legend">{legend}</div>' if legend else "")
    return f'<figure>{head}<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'


def palette(count: int) -> Sequence[str]:
    """A colour for each of so many lines; many are spread around the colour circle, neighbours alternately light and dark."""
    if count <= len(COLOURS):
        return COLOURS[:count]
    return [f"hsl({round(360 * number / count)} 75% {36 if number % 2 else 50}%)" for number in range(count)]


@dataclass(frozen=True)
class Axis:
    """A linear scale with round ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, whole: bool = False) -> Axis:
        """The axis that holds the values. whole: ticks are whole numbers."""
        low, high = min(values), max(values)
        if low == high:
            pad = abs(low) * 0.1 or 0.5
            low, high = (low - 1, high + 1) if whole else (low - pad, high + pad)
        step = _round_step((high - low) / 4)
        if whole:
            step = max(1.0, math.ceil(step))
        else:
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        first = math.ceil(low / step - 1e-9)
        return cls(low, high, start, end, tuple(number * step for number in range(first, math.floor(high / step + 1e-9) + 1)))

    def place(self, value: float) -> float:
        """Where a value lies in the picture."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _grid(x_axis: Axis, y_axis: Axis) -> str:
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/><text x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{number(tick)}</text>'
        )
    for tick in x_axis.ticks:
        parts.append(f'<text x="{x_axis.place(tick)}" y="{HEIGHT - 7}" text-anchor="middle">{number(tick)}</text>')
    return "".join(parts)


def _line(line: Line, colour: str, x_axis: Axis, y_axis: Axis, alone: bool) -> str:
    smooth = alone and not line.dots and len(line.points) >= SMOOTHED_FROM
    drawn = _path(line.points, colour, x_axis, y_axis, faint=smooth, label="" if alone else line.label)
    if smooth:
        drawn += _path(smoothed(line.points), colour, x_axis, y_axis)
    if line.dots or len(line.points) == 1:
        drawn += "".join(
            f'<circle cx="{x_axis.place(x)}" cy="{y_axis.place(y)}" r="3" fill="{colour}"><title>step {number(x)}: {number(y)}</title></circle>'
            for x, y in line.points
        )
    return drawn


def _path(points: Points, colour: str, x_axis: Axis, y_axis: Axis, faint: bool = False, label: str = "") -> str:
    """A line of straight pieces. label: shown where the mouse points at it."""
    corners = " ".join(f"{x_axis.place(x)},{y_axis.place(y)}" for x, y in points)
    width, opacity = (1, 0.3) if faint else (1.8, 1)
    looks = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}" stroke-linejoin="round"'
    return f'<polyline points="{corners}" {looks}>' + (f"<title>{escape(label)}</title>" if label else "") + "</polyline>"


def smoothed(points: Points) -> list[tuple[float, float]]:
    """Mean of each point and its neighbours on both sides (a twentieth of the line each), which lags behind no trend."""
    reach = max(1, len(points) // 20)
    out = []
    for place, (x, _) in enumerate(points):
        window = min(reach, place, len(points) - 1 - place)
        near = [y for _, y in points[place - window : place + window + 1]]
        out.append((x, sum(near) / len(near)))
    return out


def thin(points: Points, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: equal pieces, each by its mean."""
    if len(points) <= most:
        return list(points)
    edges = [round(place * len(points) / most) for place in range(most + 1)]
    pieces = [points[begin:end] for begin, end in itertools.pairwise(edges)]
    return [(sum(x for x, _ in piece) / len(piece), sum(y for _, y in piece) / len(piece)) for piece in pieces]


def number(value: float) -> str:
    """A number short enough for an axis: 0.42, 12, 3.5k, 2e-6."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size == 0 or size < 1e-12:
        return "0"
    if size < 1e-3:
        digits, _, power = (f"{value:.0e}" if math.isclose(float(f"{value:.0e}"), value) else f"{value:.1e}").partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:.4g}"
