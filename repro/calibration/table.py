"""A profile as text for a terminal."""

from __future__ import annotations

from repro.calibration.profile import CollectiveFit, CollectiveTime, Profile, Spread


def table(profile: Profile) -> str:
    """Medians with their quartiles in brackets, the fitted lines, and what is missing."""
    machine = profile.hardware
    lines = [f"measured on {machine['cpu']}, {machine['cores']} cores, GPU: {machine['gpu']}"]
    for rate in profile.rates:
        lines.append(f"  {rate.device:<5} {rate.operation:<20} {_value(rate.value, rate.unit):<34} {rate.workload}")
    lines.append(
        "collectives, gloo on host memory: bytes a rank gives, time of the slowest rank; host_ring by chunk size"
    )
    for row in profile.collectives:
        speed = f"{row.bytes / row.seconds.median / 1e6:8.1f} MB/s"
        lines.append(
            f"  {row.collective:<10} {_way(row):<20} {row.world} ranks {row.bytes / 1024:>8g} KiB  "
            f"{_value(row.seconds, 's'):<34} {speed}"
        )
    lines.append("seconds = alpha + beta bytes")
    for fit in profile.fits:
        lines.append(
            f"  {fit.collective:<10} {_way(fit):<20} {fit.world} ranks  alpha {fit.alpha_s * 1e6:8.1f} us  "
            f"1/beta {1e-6 / fit.beta_s_per_byte:8.1f} MB/s  relative residual {fit.residual:.0%}"
        )
    lines += [f"not measured: {gap.what}: {gap.reason}" for gap in profile.missing]
    return "\n".join(lines)


def _way(row: CollectiveTime | CollectiveFit) -> str:
    return row.transport if row.chunk_bytes is None else f"{row.transport} {row.chunk_bytes / 1024:g} KiB"


def _value(value: Spread, unit: str) -> str:
    scale, name = {"B/s": (1e9, "GB/s"), "FLOP/s": (1e9, "GFLOP/s"), "s": (1e-6, "us")}[unit]
    median, lower, upper = (number / scale for number in (value.median, value.lower, value.upper))
    return f"{median:.4g} {name} ({lower:.4g} .. {upper:.4g})"
