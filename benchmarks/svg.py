"""Charts as SVG, just the two kinds that are needed: horizontal bars with their spread, and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH = 860
_LABEL, _RIGHT, _ROW, _TOP = 330, 130, 24, 42
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'
_COLOURS = ("#1f5fbf", "#d9822b", "#3a9b5c", "#a6457f", "#777777", "#7b5ccf", "#b03a2e", "#2aa3a3", "#8a6d3b")
OURS, OTHER = "#1f5fbf", "#a9b4c2"


@dataclass(frozen=True)
class Bar:
    """One bar: the median, how far the rounds lie apart, or parts that are stacked instead."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    ours: bool = False
    note: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars from zero; whiskers are the lowest and highest round."""
    top = max((row.high or row.value for row in rows), default=1.0) or 1.0
    span = WIDTH - _LABEL - _RIGHT
    kinds = list(dict.fromkeys(part for row in rows for part in row.parts))
    height = _TOP + _ROW * len(rows) + (30 if kinds else 12)
    out = [_open(height, title), _text(12, 22, f"{title}, {unit}", weight="600")]
    for i, row in enumerate(rows):
        y = _TOP + i * _ROW
        middle = y + _ROW / 2 + 1
        out.append(_text(_LABEL - 8, middle + 3, _short(row.label), anchor="end"))
        left = float(_LABEL)
        for part, value in row.parts.items() or {"": row.value}.items():
            width = span * value / top
            fill = _COLOURS[kinds.index(part) % len(_COLOURS)] if part else (OURS if row.ours else OTHER)
            out.append(_rect(left, y + 4, width, _ROW - 8, fill))
            left += width
        end = left
        if row.low is not None and row.high is not None and not row.parts:
            low, high = (_LABEL + span * value / top for value in (row.low, row.high))
            out.append(_line(low, middle, high, middle, "#222222"))
            out += [_line(x, middle - 4, x, middle + 4, "#222222") for x in (low, high)]
            end = max(end, high)
        out.append(_text(end + 6, middle + 3, f"{_number(row.value)}{row.note}"))
    out += _legend(kinds, height - 10)
    return "\n".join([*out, "</svg>", ""])


@dataclass(frozen=True)
class Line:
    """A named series of points."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    colour: int = 0


def lines(title: str, x_unit: str, y_unit: str, series: Sequence[Line], *, log: bool = False) -> str:
    """Lines over a common x axis; the y axis starts at zero unless it is logarithmic."""
    height, left, bottom, right = 340 + 16 * ((len(series) + 1) // 2), 70, 60 + 16 * ((len(series) + 1) // 2), 20
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points if y > 0] or [1.0]
    low_x, high_x = min(xs), max(*xs, min(xs) + 1e-9)
    low_y, high_y = (
        (10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys) * 1.01)))
        if log
        else (0, max(ys) * 1.08)
    )

    def at(x: float, y: float) -> tuple[float, float]:
        share = (
            (math.log10(max(y, low_y)) - math.log10(low_y)) / (math.log10(high_y) - math.log10(low_y))
            if log
            else y / high_y
        )
        across = (x - low_x) / (high_x - low_x)
        return left + across * (WIDTH - left - right), height - bottom - share * (height - bottom - _TOP)

    out = [_open(height, title), _text(12, 22, f"{title}, {y_unit}", weight="600")]
    for tick in _ticks(low_y, high_y, log=log):
        _, y = at(low_x, tick)
        out += [_line(left, y, WIDTH - right, y, "#e3e6ea"), _text(left - 6, y + 4, _number(tick), anchor="end")]
    for tick in sorted(set(xs)) if len(set(xs)) <= 8 else _ticks(low_x, high_x, log=False):
        x, _ = at(tick, high_y)
        out.append(_text(x, height - bottom + 16, _number(tick), anchor="middle"))
    out.append(_text(WIDTH / 2, height - bottom + 34, x_unit, anchor="middle"))
    for i, line in enumerate(series):
        colour = _COLOURS[line.colour % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        x, y = left + (i % 2) * (WIDTH - left) / 2, height - bottom + 52 + 16 * (i // 2)
        out += [
            f'<polyline points="{x:.1f},{y:.1f} {x + 24:.1f},{y:.1f}" stroke="{colour}" stroke-width="2"{dash}/>'
        ]
        out.append(_text(x + 30, y + 4, line.label))
    return "\n".join([*out, "</svg>", ""])


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    if log:
        return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    raw = (high - low) / 5
    size = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step)
    return [n * step for n in range(first, int(high / step) + 1)]


def _legend(kinds: Sequence[str], y: float) -> list[str]:
    out, x = [], float(_LABEL)
    for i, kind in enumerate(kinds):
        out += [_rect(x, y - 9, 10, 10, _COLOURS[i % len(_COLOURS)]), _text(x + 14, y, kind)]
        x += 30 + 7 * len(kind)
    return out


def _open(height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" {_FONT}>\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="#222222">'
        f"{escape(text)}</text>"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{fill}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>'


def _short(label: str) -> str:
    return label if len(label) <= 50 else label[:49] + "…"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
