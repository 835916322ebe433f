"""Each technique on and off at 256 GPUs: what each has a share in.

Source     none: the paper adds techniques up in one order and shows no share of each at 256 GPUs
Command    repro run grid
Duration   40 s on one core
Expected   nothing published

The order in which techniques are added decides what each seems to gain, so all eight combinations are run. Technique 3
comes in both of its forms (see `experiments.headline`); with TorchRec's blocking exchange it is simulated only.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from experiments.experiment import Experiment
from experiments.headline import LARGEST
from repro.config import Arm, Transport

TRANSPORTS: dict[Transport, str] = {"process_group": "", "host_ring": "smfree", "host_ring_hidden": "smfree_hidden"}


def corner(balances: bool, prioritizes: bool, transport: Transport) -> Arm:
    """The arm with these techniques, named after them."""
    parts = ["balance" if balances else "", "priority" if prioritizes else "", TRANSPORTS[transport]]
    return Arm(
        name="+".join(part for part in parts if part) or "torchrec",
        partition="fbs" if balances else "identity",
        exchange="prioritized" if prioritizes else "blocking",
        transport=transport,
    )


EXPERIMENT = Experiment(
    name="grid",
    figure="",
    question="What is each technique's own share at 256 GPUs, whatever the order?",
    expected="not published",
    duration="40 s",
    runs=tuple(
        replace(LARGEST, experiment="grid", figure="", arm=corner(*techniques))
        for techniques in product((False, True), (False, True), TRANSPORTS)
    ),
)
