"""An experiment's whole configuration: the sections of all stages, validated as one."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from fednoil.config.axes import AXES, validated
from fednoil.data import DataConfig, clients_of, is_own
from fednoil.data.elsewhere import at_nodes
from fednoil.executors.optimiser import Optimiser
from fednoil.learners.base import LearnerConfig
from fednoil.learners.erm import ErmConfig
from fednoil.models.backbone import BackboneConfig, own_size
from fednoil.models.base import ModelConfig
from fednoil.models.cnn import CnnConfig
from fednoil.noise.base import KindConfig
from fednoil.partition.base import PartitionConfig
from fednoil.partition.iid import IidConfig
from fednoil.privacy import PrivacyConfig
from fednoil.sampling.base import SamplingConfig, ScoringConfig
from fednoil.sampling.uniform import UniformConfig
from fednoil.schedules.base import ScheduleConfig
from fednoil.schedules.constant import ConstantConfig
from fednoil.section import Section
from fednoil.servers import server_class
from fednoil.servers.base import ServerConfig
from fednoil.servers.fedavg import FedAvgConfig


class TrainConfig(Optimiser):
    """Rounds, the clients' optimiser (the paper's values) and weak augmentation, for all methods alike."""

    batch_size: int = Field(default=32, ge=2, le=65536, description="samples per step")
    pad: int = Field(
        default=4,
        ge=0,
        description="largest shift of a weakly augmented image, in pixels; with 0, vectors get no noise",
    )
    flip: bool = Field(
        default=True,
        description="mirror half of the augmented images; not for letters, or the left and right of a body",
    )
    balance: bool = Field(
        default=False,
        description="let a client's rare classes count as much as its frequent ones: logits are shifted in training by "
        "the log of each given class's share",
    )


class RunConfig(Section):
    """How this run is carried out. The seed changes its results; precision and parallel change them by rounding."""

    seed: int = Field(default=0, ge=0, description="seed of the split, the noise, the initial weights and every draw")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto",
        description="auto: a CUDA GPU where there is one, otherwise the CPU; mps: networks on Apple's GPU, client "
        "after client, the rest on the CPU",
    )
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = Field(
        default="auto",
        description="of convolutions and matrix products; auto: bfloat16 on a CUDA GPU that has it (NVIDIA's "
        "since 2020), otherwise float32; tf32: float32 with 13 bits fewer per factor, which these GPUs multiply faster",
    )
    parallel: int = Field(
        default=32,
        ge=0,
        description="clients that train at once on a GPU, at most; 0: one after another, the reference",
    )
    select: Literal["last", "best", "early"] = Field(
        default="last",
        description="the round whose model is kept; best: by held-out given labels (data.validation, or what a "
        "federation's sites hold out); early: the same, and ten rounds without a better one end the run",
    )
    deterministic: bool = Field(default=False, description="same bits on every run on the same GPU, at some cost")
    checkpoint_every: int = Field(default=10, ge=1, description="rounds between two checkpoints")
    log: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = Field(
        default=(), description="where each round's numbers are also written, one or several"
    )

    @field_validator("log", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _once_a_key_of_its_own(cls, values: Any) -> Any:
        """Runs that were made with `tensorboard = true` can be resumed."""
        if isinstance(values, dict) and isinstance(values.get("tensorboard"), bool):
            rest = {key: value for key, value in values.items() if key != "tensorboard"}
            return {"log": ("tensorboard",) if values["tensorboard"] else (), **rest}
        return values


class FederationConfig(Section):
    """How a real federation is carried out; a simulation ignores it."""

    min_nodes: int | None = Field(
        default=None, ge=1, description="nodes to wait for before round 1; none: every partition, or two sites"
    )
    wait: float = Field(default=300, gt=0, description="seconds to wait for them")
    min_replies: int = Field(default=1, ge=1, description="with fewer usable updates the model is kept")
    timeout: float = Field(default=3600, gt=0, description="seconds within which a node must reply")
    evaluate_every: int = Field(default=1, ge=1, description="rounds between two evaluations; the last round has one")
    audit: bool = Field(
        default=True, description="after the last round nodes audit their labels and report the share of wrong ones"
    )


class Config(Section):
    """One experiment."""

    data: SerializeAsAny[DataConfig] = DataConfig()
    partition: SerializeAsAny[PartitionConfig] = IidConfig()
    noise: SerializeAsAny[KindConfig] = Field(default_factory=lambda: validated("noise", {}))
    model: SerializeAsAny[ModelConfig] = CnnConfig()
    sampling: SerializeAsAny[SamplingConfig] = UniformConfig()
    server: SerializeAsAny[ServerConfig] = FedAvgConfig()
    learner: SerializeAsAny[LearnerConfig] = ErmConfig()
    schedule: SerializeAsAny[ScheduleConfig] = ConstantConfig()
    train: TrainConfig = TrainConfig()
    run: RunConfig = RunConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    federation: FederationConfig = FederationConfig()

    @field_validator(*AXES, mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        return validated(str(info.field_name), value)

    @model_validator(mode="after")
    def _resolve_partition(self) -> Config:
        """Unless a partition is set, clients have what the data say is theirs."""
        if "partition" not in self.model_fields_set and (names := clients_of(self.data)):
            object.__setattr__(self, "partition", validated("partition", {"kind": "given", "clients": len(names)}))
        return self

    @model_validator(mode="after")
    def _resolve_size(self) -> Config:
        """Pictures for a pretrained network get the size that it was trained on, unless another is set."""
        if isinstance(self.model, BackboneConfig) and getattr(self.data, "size", 0) is None:
            size = own_size(self.model.name.partition(":")[2])
            object.__setattr__(self, "data", self.data.model_copy(update={"size": size}))
        return self

    @model_validator(mode="after")
    def _resolve_noise(self) -> Config:
        """`auto`: a user's own labels are kept, and nobody knows the true ones; named datasets are clean."""
        if self.noise.kind == "auto":
            kind = "unknown" if is_own(self.data.name) else "none"
            object.__setattr__(self, "noise", validated("noise", {"kind": kind}))
        return self

    @model_validator(mode="after")
    def _nobody_to_choose(self) -> Config:
        """If all clients are pooled, sampling by scores is refused instead of being ignored."""
        if server_class(self.server.name).pools and self.sampling.name != "uniform":
            raise ValueError(
                f"sampling.name = '{self.sampling.name}': server.name = '{self.server.name}' pools all clients and "
                "chooses none; set it to 'uniform'"
            )
        return self

    @model_validator(mode="after")
    def _best_by_what(self) -> Config:
        if self.run.select != "last" and not self.data.held_out and not at_nodes(self.data):
            raise ValueError(
                f"run.select = '{self.run.select}' chooses the round by labels that clients hold out, and "
                "data.validation = 0 holds out none; set it above 0, such as 0.1"
            )
        return self

    @model_validator(mode="after")
    def _what_privacy_allows(self) -> Config:
        if (why := _against_privacy(self)) is not None:
            raise ValueError(why)
        return self

    def changed(self, *, rounds: int, select: str) -> Config:
        """The same experiment with more or fewer rounds, or ending with another model."""
        train, run = ({"rounds": rounds}, {"select": select})
        return self.model_copy(
            update={"train": self.train.model_copy(update=train), "run": self.run.model_copy(update=run)}
        )

    def without_fold(self, fold: int, count: int) -> Config:
        """The same experiment with one fold of `count`, counted from 0, kept out of training."""
        return self.model_copy(update={"data": self.data.without((fold, count))})

    def by_total(self) -> list[str]:
        """The keys that make a round depend on the total number of rounds."""
        found = [f"train.lr_rounds = '{self.train.lr_rounds}'"] if self.train.varies else []
        found += [f"schedule.name = '{self.schedule.name}'"] if self.schedule.follows_rounds else []
        found += [f"learner.name = '{self.learner.name}'"] if self.learner.follows_rounds else []
        return found

    def hash(self) -> str:
        """SHA-256 of everything that is meant to change results: of `run` the seed and `select`, of `federation`
        nothing."""
        values = self.model_dump(mode="json", exclude={"federation"})
        if self.server.limits is None:  # a key that earlier versions lack
            del values["server"]["limits"]
        scores = values["privacy"].pop("scores")
        if isinstance(self.sampling, ScoringConfig):  # where it was when the first runs were recorded
            values["sampling"]["epsilon"] = scores
        if self.privacy == PrivacyConfig(scores=scores):
            del values["privacy"]
        values["run"] = {"seed": self.run.seed} | ({"select": self.run.select} if self.run.select != "last" else {})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _against_privacy(config: Config) -> str | None:
    """Why these choices can't be had together; None: they can."""
    keys = config.privacy
    if keys.scores is not None and not isinstance(config.sampling, ScoringConfig):
        name = config.sampling.name
        return f"privacy.scores = {keys.scores:g}: sampling.name = '{name}' asks for no scores; leave it out"
    if (keys.clip is not None or keys.sees != "updates") and server_class(config.server.name).pools:
        return (
            f"privacy: server.name = '{config.server.name}' pools all clients' data, so there are no updates to protect"
        )
    if keys.sees == "noise" or (keys.sees == "updates" and keys.noise is None):
        return None
    asked = "privacy.sees = 'sum'" if keys.sees == "sum" else f"privacy.noise = {keys.noise:g}"
    if not server_class(config.server.name).needs_only_mean():
        return (
            f"{asked} leaves the server only the mean of the updates, and server.name = '{config.server.name}' needs "
            "each of them; use 'fedavg', 'fedprox' or 'apfl'"
        )
    if config.server.limits:
        return (
            f"{asked} leaves the server only the mean of the updates, and server.limits = true compares them with each "
            "other; leave it out, and bound them with privacy.clip"
        )
    if keys.noise is not None and isinstance(config.sampling, ScoringConfig):
        return (
            f"privacy.noise = {keys.noise:g}: sampling.name = '{config.sampling.name}' draws clients by their scores, "
            "which reveal what the noise hides; use 'uniform'"
        )
    return None
