"""One experiment definition for both executors: frozen dataclasses, checked when built.

A `RunConfig` is one run: one arm, one mode, one data set, one world size. An experiment is a tuple of
them (a sweep is `dataclasses.replace` over one), so everything that decides a number is in one
value with one stable fingerprint. Paths are not part of it: where results lie never changes a number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from repro.errors import InputError

Mode = Literal["measured", "emulated", "simulated"]
Partition = Literal["identity", "fbs", "vbs", "karmarkar_karp", "fbs_cost", "vbs_cost"]
VbsOrder = Literal["dealt", "batch"]
Exchange = Literal["blocking", "sdd", "prioritized", "stale"]
Transport = Literal["process_group", "host_ring", "host_ring_hidden"]
SparseOptimizer = Literal["sgd", "rowwise_adagrad"]
Dtype = Literal["float32", "float64", "bfloat16"]


def _require(condition: bool, path: str, message: str) -> None:
    if not condition:
        raise InputError(f"{path}: {message}")


def _require_choice(value: object, literal: Any, path: str) -> None:
    choices = get_args(literal)
    _require(value in choices, path, f"{value!r} is not one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True, kw_only=True)
class BalanceConfig:
    """What the partition functions need besides lengths and candidate counts."""

    alpha: float = 1.5
    """`vbs`: a sample weighs L ** alpha. Half-way between linear work (1) and attention (2)."""
    vbs_order: VbsOrder = "dealt"
    """`vbs`: the sequence that is cut; as FBS deals the samples, or the global batch as it comes."""
    attention_length: float = 4278.0
    """`fbs_cost`, `vbs_cost`, `karmarkar_karp`: history length, in tokens, at which attention costs as much as all
    linear work (source: `repro.balance.cost`)."""
    autotune: bool = False
    """`vbs`, `vbs_cost`: correct each rank's share of the work from its measured execution time."""
    token_cap: int = 0
    """Most tokens (history and candidates) a rank may receive in a step; 0: no cap."""

    def __post_init__(self) -> None:
        _require(self.alpha > 0, "arm.balance.alpha", f"must be > 0, got {self.alpha}")
        _require_choice(self.vbs_order, VbsOrder, "arm.balance.vbs_order")
        _require(self.attention_length > 0, "arm.balance.attention_length", f"must be > 0, got {self.attention_length}")
        _require(self.token_cap >= 0, "arm.balance.token_cap", f"must be >= 0, got {self.token_cap}")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One rung of the ablation ladder: what is done about each cause of bubbles."""

    name: str
    """Stable name used in every table (`torchrec`, `balance`)."""
    partition: Partition = "identity"
    """How the samples of a global batch are dealt to ranks (paper, technique 1)."""
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    """Settings of the partition."""
    exchange: Exchange = "blocking"
    """How embeddings travel (paper, technique 2). blocking, sdd: TorchRec's pipelines. prioritized: exact. stale: all
    rows prefetched, collisions ignored; a control, not a technique."""
    transport: Transport = "process_group"
    """What moves AllGather and AllToAll of balancing and of prioritized updates (paper, technique 3). host_ring: all of
    them. host_ring_hidden: those that run behind dense work; rows that the step waits for stay on the process group.
    Simulated runs only: with TorchRec's exchange, too."""

    def __post_init__(self) -> None:
        _require_choice(self.partition, Partition, "arm.partition")
        _require(
            not self.balance.autotune or self.partition in ("vbs", "vbs_cost"),
            "arm.balance.autotune",
            f"needs a partition with free counts (vbs, vbs_cost), not {self.partition}",
        )
        _require_choice(self.exchange, Exchange, "arm.exchange")
        _require_choice(self.transport, Transport, "arm.transport")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of the sequence model: HSTU layers over UIH and candidates, then a ranking head."""

    name: str
    """Preset name, for tables."""
    layers: int
    """Number of HSTU layers."""
    dim: int
    """Width of token embeddings and of the residual stream."""
    heads: int
    """Attention heads; each has dim / heads channels for queries, keys and values."""
    dense_dtype: Dtype = "float32"
    """Type of the replicated (dense) part. Sharded tables are always float32."""

    def __post_init__(self) -> None:
        for name in ("layers", "dim", "heads"):
            _require(getattr(self, name) >= 1, f"model.{name}", f"must be >= 1, got {getattr(self, name)}")
        _require(
            self.dim % self.heads == 0,
            "model.heads",
            f"must divide model.dim; {self.dim} % {self.heads} != 0",
        )
        _require_choice(self.dense_dtype, Dtype, "model.dense_dtype")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Learning rates; the sparse part is fused into TorchRec's backward pass."""

    sparse: SparseOptimizer = "rowwise_adagrad"
    """Row update of the sharded tables."""
    sparse_lr: float = 0.05
    """Learning rate of the sharded tables."""
    dense_lr: float = 1e-3
    """Learning rate of the replicated part (Adam)."""

    def __post_init__(self) -> None:
        _require_choice(self.sparse, SparseOptimizer, "optimizer.sparse")
        for name in ("sparse_lr", "dense_lr"):
            _require(getattr(self, name) > 0, f"optimizer.{name}", f"must be > 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What joins the ranks of a measured or emulated run on this machine. Simulated runs have their cluster's."""

    rate_mbit: float = 0.0
    """Of each rank's link, each way, megabits (10^6) a second; 0: plain loopback, unshaped."""
    delay_ms: float = 0.0
    """From one rank to another, one way, milliseconds."""

    def __post_init__(self) -> None:
        _require(self.rate_mbit >= 0, "network.rate_mbit", f"must be >= 0, got {self.rate_mbit}")
        _require(self.delay_ms >= 0, "network.delay_ms", f"must be >= 0, got {self.delay_ms}")
        _require(
            self.rate_mbit > 0 or self.delay_ms == 0,
            "network.delay_ms",
            f"{self.delay_ms} needs a shaped network; set network.rate_mbit, too",
        )


@dataclass(frozen=True, kw_only=True)
class PaceConfig:
    """The accelerator whose time an emulated run's dense compute takes."""

    model: ModelConfig
    """What it is taken to compute, on the batch's real lengths."""
    cluster: str
    """Name of a cluster profile, for its device."""
    time_scale: float
    """Seconds of the run for a second of that device: slow enough that real exchanges can keep up."""
    slow_rank: int = -1
    """A rank whose device is slower than the others', as a throttled GPU is; -1: none."""
    slowness: float = 1.0
    """How many times as long its dense compute lasts."""

    def __post_init__(self) -> None:
        _require(self.time_scale > 0, "pace.time_scale", f"must be > 0, got {self.time_scale}")
        _require(self.slow_rank >= -1, "pace.slow_rank", f"must be a rank, or -1 for none, got {self.slow_rank}")
        _require(self.slowness >= 1, "pace.slowness", f"must be >= 1, got {self.slowness}")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When a measured or emulated run is saved, to go on from there if it is cut short. A simulated run is not."""

    every: int = 0
    """Steps between checkpoints; 0: none."""
    keep: int = 2
    """How many of the newest stay."""

    def __post_init__(self) -> None:
        _require(self.every >= 0, "checkpoint.every", f"must be >= 0, got {self.every}")
        _require(self.keep >= 1, "checkpoint.keep", f"must be >= 1, got {self.keep}")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the numbers of one run, and how often it is saved, which does not."""

    experiment: str
    """Stable experiment name; the W&B group."""
    figure: str
    """Paper item this run speaks to, e.g. `Fig. 8a`; empty when none."""
    mode: Mode
    """`measured` starts real ranks; `simulated` asks a cost model for durations; `emulated` starts real ranks and makes
    their dense compute last as long as the cost model says."""
    arm: Arm
    dataset: str
    """Name of a prepared data set."""
    cluster: str
    """Name of a cluster profile (`repro.execution.simulated.clusters`)."""
    gpus: int
    """World size: one rank a GPU, or a CPU process when measured without GPUs."""
    batch: int
    """Requests a rank and step before balancing; a global batch is gpus x batch requests."""
    max_uih: int
    """Cap on events of user interaction history (UIH) a request; the latest are kept."""
    steps: int
    """Optimizer steps, warm-up included."""
    warmup_steps: int = 2
    """First steps left out of the timing metrics (never out of NE)."""
    seed: int = 0
    model: ModelConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    pace: PaceConfig | None = None
    """Of emulated runs, and of no others."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _require_choice(self.mode, Mode, "mode")
        if self.pace is None:
            _require(self.mode != "emulated", "pace", "is missing; an emulated run takes its time from it")
        else:
            _require(self.mode == "emulated", "pace", f"is for emulated runs, not {self.mode} ones")
            slow_rank = self.pace.slow_rank
            _require(slow_rank < self.gpus, "pace.slow_rank", f"must be below gpus ({self.gpus}), got {slow_rank}")
        _require(
            self.mode == "simulated"
            or self.arm.transport == "process_group"
            or self.arm.exchange in ("prioritized", "stale"),
            "arm.transport",
            f"{self.arm.transport} needs exchange prioritized or stale: TorchRec's collectives stay on the process "
            "group",
        )
        for name in ("gpus", "batch", "max_uih", "steps"):
            _require(getattr(self, name) >= 1, name, f"must be >= 1, got {getattr(self, name)}")
        _require(
            0 <= self.warmup_steps < self.steps,
            "warmup_steps",
            f"must be in 0..{self.steps - 1} (steps is {self.steps}), got {self.warmup_steps}",
        )

    @property
    def global_batch(self) -> int:
        """Requests in one global batch."""
        return self.gpus * self.batch

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dict, the form stored beside every result."""
        return dataclasses.asdict(self)

    def deciding(self) -> dict[str, Any]:
        """`to_dict` without `checkpoint`: a run that is saved more often, or not at all, trains the same."""
        return {name: value for name, value in self.to_dict().items() if name != "checkpoint"}

    def fingerprint(self) -> str:
        """SHA-256 (hex) of what decides the numbers, as canonical JSON."""
        return fingerprint(self.deciding())


def fingerprint(value: Any) -> str:
    """SHA-256 (hex) of `value` as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def from_dict(raw: dict[str, Any]) -> RunConfig:
    """Inverse of `RunConfig.to_dict`.

    Raises:
        InputError: an unknown, missing or ill-typed field, named by its path.
    """
    built: RunConfig = _build(RunConfig, raw, "")
    return built


def _build(cls: Any, raw: Any, path: str) -> Any:
    _require(isinstance(raw, dict), path or "config", f"must be a table of fields, got {raw!r}")
    hints = get_type_hints(cls)
    unknown = sorted(set(raw) - set(hints))
    _require(not unknown, path or "config", f"unknown field {', '.join(unknown)}")
    values = {}
    for spec in dataclasses.fields(cls):
        where = f"{path}.{spec.name}" if path else spec.name
        if spec.name not in raw:
            required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
            _require(not required, where, "is missing")
            continue
        hint, value = hints[spec.name], raw[spec.name]
        if get_origin(hint) is UnionType:  # `SomeConfig | None`
            hint = get_args(hint)[0] if value is not None else type(None)
        if dataclasses.is_dataclass(hint):
            value = _build(hint, value, where)
        elif hint in (int, float, str):
            wanted = (int, float) if hint is float else hint
            _require(
                isinstance(value, wanted) and not isinstance(value, bool),
                where,
                f"must be of type {hint.__name__}, got {value!r}",
            )
        values[spec.name] = value
    return cls(**values)


def override(config: RunConfig, assignments: list[str]) -> RunConfig:
    """Apply `path=value` assignments such as `model.layers=3`.

    Raises:
        InputError: no `=`, an unknown path, or a value of the wrong type.
    """
    raw = config.to_dict()
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        _require(bool(equals), f"--set {assignment}", "write it as path=value, e.g. --set batch=64")
        node: Any = raw
        *parents, leaf = path.split(".")
        for name in parents:
            _require(isinstance(node.get(name), dict), f"--set {path}", f"no such field {name!r}")
            node = node[name]
        _require(leaf in node, f"--set {path}", f"no such field; there are {', '.join(sorted(node))}")
        _require(not isinstance(node[leaf], dict), f"--set {path}", "is a group; set one of its fields")
        node[leaf] = _parse(text, node[leaf], f"--set {path}")
    return from_dict(raw)


def _parse(text: str, current: object, path: str) -> object:
    try:
        match current:
            case bool():
                return {"true": True, "false": False}[text.lower()]
            case int():
                return int(text)
            case float():
                return float(text)
            case _:
                return text
    except (KeyError, ValueError):
        raise InputError(f"{path}: {text!r} is not of type {type(current).__name__}") from None
