"""Normalized entropy (NE): log loss over the entropy of the base rate; below 1 beats predicting the base rate.

Source: paper, "Definitions"; He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook" (ADKDD 2014).
"""

from __future__ import annotations

import math

from repro.errors import InputError


def normalized_entropy(loss_sum: float, positives: float, labels: float) -> float:
    """NE of `labels` predictions.

    Args:
        loss_sum: sum of the log losses, nats.
        positives: number of labels that are 1.
        labels: number of labels.

    Raises:
        InputError: no labels, or all alike (the base rate then has no entropy).
    """
    if not 0 < positives < labels:
        raise InputError(f"NE needs labels of both classes; got {positives} positives of {labels}")
    rate = positives / labels
    base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    return loss_sum / labels / base
