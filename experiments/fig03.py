"""How many embedding rows two consecutive global batches share.

Source     Fig. 3
Command    repro run fig03
Duration   20 s on one core, data included
Expected   by one note single digits, by another about 12 % on average, 14 % at the 99th percentile (confidence C)

The rate is a property of ids, not of an arm or a cluster; the simulator counts it. Global batches of every size are cut
from the same requests, so larger ones leave fewer pairs.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Experiment
from experiments.ladder import SIMULATED_PAPER, SIMULATED_SAME

SHAPES = ((8, 128), (64, 32), (64, 128), (64, 512), (256, 128))
"""(GPUs, batch)."""
REQUESTS = 98_304

EXPERIMENT = Experiment(
    name="fig03",
    figure="Fig. 3",
    question="Which share of the rows that a global batch reads does the one before update?",
    expected="low single digits, or about 12 % (C)",
    duration="20 s",
    runs=(
        *(
            replace(SIMULATED_SAME, experiment="fig03", figure="Fig. 3", gpus=gpus, steps=steps)
            for gpus, steps in ((8, 20), (64, 5))
        ),
        *(
            replace(
                SIMULATED_PAPER,
                experiment="fig03",
                figure="Fig. 3",
                gpus=gpus,
                batch=batch,
                steps=min(20, REQUESTS // (gpus * batch)),
            )
            for gpus, batch in SHAPES
        ),
    ),
)
