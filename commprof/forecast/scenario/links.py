"""Cost of a collective on links whose rate or latency may differ from the measured links'."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from commprof import invocation
from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import work
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST, CostCurve
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile
from commprof.forecast.scenario.scenario import HIERARCHICAL, Scenario
from commprof.forecast.scenario.schedule import Placement
from commprof.text import listed

#: If the fitted rate is at least this share of the stated rate, the link was the limit.
_LINK_BOUND = 0.6


@dataclass(frozen=True)
class ScenarioLink:
    """Cost of one operation's collectives on a scenario's links."""

    #: Cost on links within a host; None if the ring uses no such link, or none was measured.
    inner: CostCurve | None
    #: Cost on links between hosts; None if all ranks are on one host.
    outer: CostCurve | None
    ranks_per_host: int
    hierarchical: bool
    outside: tuple[str, ...]
    remarks: tuple[str, ...]
    #: Latency of one message over the slowest link, with as many ranks per core as in the
    #: measurement; NaN if unknown.
    message_s: float = math.nan

    @property
    def slowest(self) -> CostCurve:
        """Cost on the slowest link of a ring over all ranks."""
        curve = self.outer or self.inner
        assert curve is not None
        return curve

    def time_s(self, size_bytes: float, ranks: int, op: str) -> float:
        """Returns the time of a collective on idle links, in seconds.

        The hierarchical algorithm is an all-reduce, whatever ``op`` is.
        """
        if self.hierarchical and self.inner is not None and self.outer is not None:
            inside = self.inner.time_s(size_bytes, self.ranks_per_host, "all_reduce")
            return inside + self.outer.time_s(size_bytes, self._hosts(ranks), "all_reduce")
        times = [c.time_s(size_bytes, ranks, op) for c in (self.inner, self.outer) if c is not None]
        return max(times)

    def transfer_s(self, size_bytes: float, ranks: int, op: str) -> float:
        """Returns the part of ``time_s`` in which the slowest link is busy."""
        if self.hierarchical and self.inner is not None and self.outer is not None:
            return max(
                self.inner.transfer_s(size_bytes, self.ranks_per_host, "all_reduce"),
                self.outer.transfer_s(size_bytes, self._hosts(ranks), "all_reduce"),
            )
        curves = [curve for curve in (self.inner, self.outer) if curve is not None]
        return max(curve.transfer_s(size_bytes, ranks, op) for curve in curves)

    def sent_bytes(self, size_bytes: float, ranks: int) -> float:
        """Returns the bytes that one rank sends in an all-reduce."""
        return work("all_reduce", ranks).sent * size_bytes

    def replicate(self, number: int) -> ScenarioLink:
        """Returns the links with the costs of one bootstrap replicate."""
        return dataclasses.replace(
            self,
            inner=None if self.inner is None else self.inner.replicate(number),
            outer=None if self.outer is None else self.outer.replicate(number),
        )

    def _hosts(self, ranks: int) -> int:
        return max(1, math.ceil(ranks / self.ranks_per_host))


def scenario_link(
    profile: MachineProfile, scenario: Scenario, placement: Placement, op: str = "all_reduce"
) -> ScenarioLink:
    """Returns the costs of an operation on a scenario's links.

    Args:
        profile: fitted costs.
        scenario: world size, and changes of the link between hosts.
        placement: hosts and cores of the scenario's ranks.
        op: the operation. If it was not measured, the cost of all-reduce is used, or else that of
            reduce-scatter.

    Raises:
        CommprofError: the cost is unknown, or the scenario does not fit its placement.
    """
    per_host = max(1, round(min(placement.ranks_per_host, scenario.world_size)))
    several = scenario.world_size > per_host
    if scenario.changes_link and not several and scenario.world_size > 1:
        raise CommprofError(
            "--bandwidth and --latency change the link between hosts, but with "
            f"{round(placement.ranks_per_host)} ranks per host all {scenario.world_size} ranks "
            "are on one host; spread them over hosts: --ranks-per-host 1"
        )
    outside: list[str] = []
    remarks: list[str] = []
    inner = _inner(profile, placement, op) if per_host > 1 or not several else None
    outer = _outer(profile, scenario, placement, op, outside, remarks) if several else None
    if per_host > 1 and inner is None:
        remarks.append(
            "links within a host were not measured and are assumed to be at least as fast as the "
            "link between hosts"
        )
    if not several and inner is None:
        _refuse_without(profile.links.get(SAME_HOST), op)
        raise CommprofError(
            "all ranks run on one host, whose link was not measured; fit a run or a "
            "microbenchmark of this host: commprof fit"
        )
    if scenario.algorithm == HIERARCHICAL and (inner is None or outer is None):
        raise CommprofError(
            "--algorithm hierarchical needs several ranks on each of several hosts, and a measured "
            "link within a host; set --ranks-per-host, and if no link within a host was measured, "
            "fit again with an additional run whose ranks are all on one host: commprof fit"
        )
    hierarchical = scenario.algorithm == HIERARCHICAL
    return ScenarioLink(
        inner,
        outer,
        per_host,
        hierarchical,
        tuple(outside),
        tuple(remarks),
        _message_s(profile, scenario, several, op),
    )


def _message_s(profile: MachineProfile, scenario: Scenario, several: bool, op: str) -> float:
    measured = profile.links.get(OTHER_HOST if several else SAME_HOST)
    curve = _curve(measured, op)
    more_s = 0.0
    if several and curve is None:
        # As in ``_stated``: the latency within one host, plus the stated latency of the link.
        curve, more_s = _curve(profile.links.get(SAME_HOST), op), scenario.latency_s
    elif several and measured is not None and not math.isnan(scenario.latency_s):
        more_s = scenario.latency_s - measured.latency_s
    return math.nan if curve is None else max(0.0, curve.pieces[0].alpha_s + more_s)


def _inner(profile: MachineProfile, placement: Placement, op: str) -> CostCurve | None:
    curve = _curve(profile.links.get(SAME_HOST), op)
    if curve is None:
        return None
    # A transfer within a host is CPU time, so it slows down in proportion to the ranks per core.
    factor = _crowding_factor(curve, placement)
    return curve.changed(lambda a: a * factor, lambda b: b * factor)


def _outer(
    profile: MachineProfile,
    scenario: Scenario,
    placement: Placement,
    op: str,
    outside: list[str],
    remarks: list[str],
) -> CostCurve:
    measured = profile.links.get(OTHER_HOST)
    curve = _curve(measured, op)
    if curve is None or measured is None:
        return _stated(profile, scenario, placement, op, outside, remarks)
    rate, latency_s = scenario.bandwidth_bytes_per_s, scenario.latency_s
    more_s = 0.0
    if not math.isnan(latency_s):
        if math.isnan(measured.latency_s):
            raise CommprofError(
                "--latency needs the measured link's own latency, which the profile does not "
                "contain; fit again with --link-latency"
            )
        more_s = latency_s - measured.latency_s
        if not math.isclose(latency_s, measured.latency_s, rel_tol=1e-3, abs_tol=1e-9):
            outside.append(
                f"latency {latency_s * 1e6:.3g} µs (measured: {measured.latency_s * 1e6:.3g})"
            )
    scale = _rate_scale(curve, measured, rate, outside, remarks)
    factor = _latency_factor(curve, placement)
    return curve.changed(lambda a: max(0.0, a * factor + more_s), scale)


def _rate_scale(
    curve: CostCurve,
    measured: LinkProfile,
    rate: float,
    outside: list[str],
    remarks: list[str],
) -> Callable[[float], float]:
    """Returns a function that converts seconds per byte to a link with ``rate`` in bytes per s.

    Appends a differing rate to ``outside``, and assumptions to ``remarks``.
    """
    sends_bytes = curve.pieces[-1].beta_s_per_byte > 0  # a barrier sends none
    if math.isnan(rate) or not sends_bytes:
        return lambda beta: beta
    stated = measured.bytes_per_s
    if math.isnan(stated):
        raise CommprofError(
            "--bandwidth needs the measured link's own rate, which the profile does not contain; "
            "fit again with --link-bandwidth"
        )
    share = 1 / curve.pieces[-1].beta_s_per_byte / stated
    is_link_bound = share >= _LINK_BOUND
    based = "; the prediction is based on this share" if is_link_bound else ""
    remarks.append(
        f"payload was sent at {share:.1%} of the measured link's stated rate "
        f"({stated * 8 / 1e9:.3g} Gbit/s){based}"
    )
    if rate < stated / 1.001:
        outside.append(f"{rate * 8 / 1e9:.3g} Gbit/s (measured: {stated * 8 / 1e9:.3g})")
    if rate > stated * 1.001:
        outside.append(
            f"{rate * 8 / 1e9:.3g} Gbit/s (measured: {stated * 8 / 1e9:.3g}): the hosts may not "
            "be able to send this fast"
        )
    if not is_link_bound:
        remarks.append(
            "the hosts, not the link, limited the measured rate; a faster link is assumed to reach "
            "the same rate"
        )
        return lambda beta: max(beta, 1 / rate)
    done = work(curve.op, 2, curve.backend)
    gamma = (curve.gamma_s_per_byte or 0.0) * done.reduced / done.sent
    return lambda beta: max(0.0, beta - gamma) * stated / rate + min(beta, gamma)


def _stated(
    profile: MachineProfile,
    scenario: Scenario,
    placement: Placement,
    op: str,
    outside: list[str],
    remarks: list[str],
) -> CostCurve:
    """Returns the cost between hosts if only the stated rate and latency of the link are known."""
    curve = _curve(profile.links.get(SAME_HOST), op)
    rate, latency_s = scenario.bandwidth_bytes_per_s, scenario.latency_s
    if curve is None:
        _refuse_without(profile.links.get(OTHER_HOST) or profile.links.get(SAME_HOST), op)
    if curve is None or math.isnan(rate) or math.isnan(latency_s):
        raise CommprofError(
            "no link between hosts was measured; give both --bandwidth and --latency, or fit a run "
            "or a microbenchmark of two hosts: commprof fit"
        )
    outside.append("links between hosts (measured: within one host)")
    remarks.append(
        "the link between hosts was not measured; assumed latency: the stated latency plus the "
        "latency within one host; assumed rate: the stated rate or the rate within one host, "
        "whichever is lower"
    )
    factor = _crowding_factor(curve, placement)
    return curve.changed(lambda a: a * factor + latency_s, lambda b: max(b * factor, 1 / rate))


def _crowding_factor(curve: CostCurve, placement: Placement) -> float:
    if math.isnan(curve.ranks_per_core):
        return 1.0
    return placement.ranks_per_core / max(1.0, curve.ranks_per_core)


def _latency_factor(curve: CostCurve, placement: Placement) -> float:
    """Returns the factor by which the sharing of cores changes the latency between hosts.

    Helper threads wait for a core if the ranks want more processor time than the cores have.
    """
    measured = 1.0 if math.isnan(curve.ranks_per_core) else max(1.0, curve.ranks_per_core)
    wanted = placement.busy_share
    return max(1.0, placement.ranks_per_core * wanted) / max(1.0, measured * wanted)


def _refuse_without(link: LinkProfile | None, op: str) -> None:
    """Raises CommprofError if the link has curves, but none that may be used for ``op``."""
    if link is None or not link.curves or _curve(link, op) is not None:
        return
    raise CommprofError(
        f"the profile has the costs of {listed(sorted(link.curves))}, but not of {op}; "
        f"measure {op} with this command, and give FILE to commprof fit, too: "
        + invocation.command("microbench", op, "--json", "FILE")
    )


def _curve(link: LinkProfile | None, op: str) -> CostCurve | None:
    if link is None:
        return None
    curves = (link.curves.get(name) for name in (op, "all_reduce", "reduce_scatter"))
    return next((curve for curve in curves if curve is not None), None)
