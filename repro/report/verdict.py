"""Whether a run bears out a published change, in words that are fixed before anything is run.

published -90.3 %: -85 % is `reproduced`, -60 % is `direction only`, +3 % is `not reproduced`
"""

from __future__ import annotations

from typing import Literal

from repro.report.published import PaperValue

Verdict = Literal["reproduced", "direction only", "not reproduced"]

BAND = 0.1
"""Of the published value, either way. The best published error of a comparable simulator, ASTRA-sim's at 8 GPUs, is
9.7 %."""
BAND_TEXT = f"reproduced: within {100 * BAND:.0f} % of the published value"


def verdict_of_change(value: PaperValue, found: float) -> Verdict:
    """Verdict on a change against the baseline, such as -90.3 %.

    Args:
        found: in the unit of the published value.
    """
    if abs(found - value.value) <= BAND * abs(value.value):
        return "reproduced"
    return "direction only" if found * value.value > 0 else "not reproduced"
