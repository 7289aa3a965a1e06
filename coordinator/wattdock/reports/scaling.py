"""Scaling over GPU counts for a terminal, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wattdock.analysis import ENERGY_BOUNDARY, geometric_interval, geometric_mean
from wattdock.reports.scaling_curves import AMDAHL_METHOD, MEAN_METHOD, RATIO_METHOD, curves, optimum
from wattdock.reports.terminal import Sheet, console
from wattdock.reports.words import NOTHING
from wattdock.text import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from wattdock.reports.scaling_curves import Amdahl, Curve, Optimum, Ratio, Scaled
    from wattdock.reports.scaling_points import LeftOut, Point, Setting

COLUMNS = (
    *("kind", "split", "GPUs", "restarts", "tokens/s", "speed-up", "efficiency", "TTFT p50", "TPOT p50", "mean W"),
    *("J/token", "J/token ÷ first", "imbalance"),
)
KIND_OF_SCALING = "strong, the same requests in flight at every size, unless a kind says weak: as many for each replica"


def print_scaling(found: Sequence[Setting], left_out: Sequence[LeftOut], *, as_json: bool) -> None:
    """Print every setting's curves, fits and cheapest configuration."""
    if as_json:
        print_json(as_document(found, left_out))
        return
    out = console()
    for setting in found:
        _print_setting(out, setting)
    for one in left_out:
        _say(out, f"left out: {one.result}: {one.reason}")
    _say(
        out,
        f"J/token: {ENERGY_BOUNDARY}, over the GPUs used. Scaling is {KIND_OF_SCALING}. "
        f"tokens/s, mean W and J/token: {MEAN_METHOD}. Ratios: {RATIO_METHOD}.",
    )


def _print_setting(out: Console, setting: Setting) -> None:
    _say(out, setting.name)
    drawn = curves(setting)
    rows = [_cells(curve.kind, one.point, one) for curve in drawn for one in curve.points]
    alone = [_cells(one.kind, one, None) for one in setting.points if not drawn]
    out.print(Sheet(COLUMNS, rows + alone, right=COLUMNS[2:]))
    for curve in drawn:
        _say(out, f"Amdahl, {curve.kind}: {_amdahl(curve.amdahl)}")
    _say(out, f"fewest joules per token: {_optimum(optimum(setting.points))}")
    _say(out, "")


def _cells(kind: str, point: Point, one: Scaled | None) -> tuple[str, ...]:
    """Return a row; ratios only where there is another size to compare with."""
    return (
        kind,
        point.split.label,
        str(point.gpus),
        str(len(point.tokens_per_s)),
        _mean(point.tokens_per_s, ",.0f"),
        _ratio(one.speed_up if one else None),
        _ratio(one.efficiency if one else None),
        _milliseconds(point.ttft_p50_s),
        _milliseconds(point.tpot_p50_s),
        _mean(point.power_w, ",.0f"),
        _mean(point.j_per_token, ".4g"),
        _ratio(one.energy_ratio if one else None),
        NOTHING if point.load_imbalance is None else f"{point.load_imbalance:.3f}",
    )


def _mean(values: Sequence[float], form: str) -> str:
    if not values:
        return NOTHING
    mean, ends = f"{geometric_mean(values):{form}}", geometric_interval(values)
    return f"{mean} [{ends[0]:{form}}, {ends[1]:{form}}]" if ends else mean


def _ratio(one: Ratio | None) -> str:
    if one is None:
        return NOTHING
    if one.low is None or one.high is None:
        return f"{one.value:.3f}"
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def _milliseconds(value_s: float | None) -> str:
    return NOTHING if value_s is None else f"{value_s * 1e3:,.1f} ms"


def _amdahl(fit: Amdahl) -> str:
    if fit.serial_share is None or fit.low is None or fit.high is None:
        return f"not fitted: {fit.reason}"
    off = f"worst point {fit.worst_residual:.1%} off" if fit.worst_residual is not None else ""
    return f"serial share {fit.serial_share:.1%} [{fit.low:.1%}, {fit.high:.1%}], {off}"


def _optimum(best: Optimum | None) -> str:
    if best is None:
        return "unknown, energy was not measured"
    own = f"{best.point.split.label}, {geometric_mean(best.point.j_per_token):.4g} J/token"
    if best.next_best is None:
        return f"{own}; there is no other to compare it with"
    other = f"next is {best.next_best.split.label}"
    if best.difference is None:
        return f"{own}; {other}, {_more(best):+.1%}; whether they differ needs two restarts of each"
    verdict = "differ" if best.difference.differs else "do not differ"
    apart = f"{best.difference.relative:+.1%} [{best.difference.low:+.1%}, {best.difference.high:+.1%}]"
    return f"{own}; {other}, {apart}: they {verdict}"


def _more(best: Optimum) -> float:
    assert best.next_best is not None
    return geometric_mean(best.next_best.j_per_token) / geometric_mean(best.point.j_per_token) - 1


def as_document(found: Sequence[Setting], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Return everything JSON-ready."""
    return {
        "energy_boundary": ENERGY_BOUNDARY,
        "scaling": KIND_OF_SCALING,
        "mean_method": MEAN_METHOD,
        "ratio_method": RATIO_METHOD,
        "amdahl_method": AMDAHL_METHOD,
        "settings": [_setting_json(setting) for setting in found],
        "left_out": [asdict(one) for one in left_out],
    }


def _setting_json(setting: Setting) -> dict[str, Any]:
    best = optimum(setting.points)
    return {
        "name": setting.name,
        "points": [_point_json(point) for point in setting.points],
        "curves": [_curve_json(curve) for curve in curves(setting)],
        "fewest_joules": best
        and {
            "split": best.point.split.label,
            "j_per_token": geometric_mean(best.point.j_per_token),
            "next_best": best.next_best and best.next_best.split.label,
            "difference": best.difference and asdict(best.difference) | {"differs": best.difference.differs},
        },
    }


def _point_json(point: Point) -> dict[str, Any]:
    split = {"split": point.split.label, "kind": point.kind, "gpus": point.gpus}
    means = {name: _mean_json(getattr(point, name)) for name in ("tokens_per_s", "j_per_token", "power_w")}
    rest = ("ttft_p50_s", "tpot_p50_s", "e2e_p95_s", "load_imbalance", "results")
    return split | means | {name: getattr(point, name) for name in rest}


def _mean_json(values: Sequence[float]) -> dict[str, Any]:
    mean = geometric_mean(values) if values else None
    return {"mean": mean, "ci95": geometric_interval(values), "restarts": values}


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "kind": curve.kind,
        "amdahl": asdict(curve.amdahl),
        "points": [
            {
                "split": one.point.split.label,
                "gpus": one.point.gpus,
                "speed_up": asdict(one.speed_up),
                "efficiency": asdict(one.efficiency),
                "energy_ratio": one.energy_ratio and asdict(one.energy_ratio),
            }
            for one in curve.points
        ],
    }


def _say(out: Console, line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)
