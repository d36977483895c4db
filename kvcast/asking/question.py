"""A question about a fleet as one scenario: whose users, which model and GPU, within which limits.

The one idea: what is asked is a handful of plain values, each with a default; everything else follows from them and is
an ordinary scenario, which `kvcast plan` reads.

    >>> asked = Asked(Question(use="chat", users=300)); asked.scenario(asked.rate).workload.rate
"""

from __future__ import annotations

import functools
import tomllib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.memory import WIDTHS
from calibrate.models import PREFIX, bundled_models, hugging_face_names, published_names
from calibrate.resolve import gpu_name, known_gpus
from kvcast.asking.uses import USES, Sized, Use, sized
from kvcast.config import override, scenario_from_doc
from kvcast.scenario.fitting import model_of
from kvcast.scenario.toml import dumps
from sim.scenario import (
    DTYPES,
    KV_DTYPES,
    ClusterConfig,
    CostConfig,
    EngineConfig,
    HardwareConfig,
    ModelConfig,
    Scenario,
    SloConfig,
)
from workloads.config import WorkloadConfig
from workloads.errors import InputError, did_you_mean
from workloads.limits import MAX_TOKENS, RATE, SECONDS, SHARE, TOKENS, Limit, above_0, from_0, from_1, within

KEEPS_SESSIONS, EVEN = "session-affinity", "round-robin"
DAY_HOURS = 8.0
LIMITS: dict[str, Limit] = {
    "users": above_0(1e9),
    "sessions_a_day": above_0(1e9),
    "rps": RATE,
    "gpus": from_1(100_000),
    "system": from_0(1e9),
    "new_tokens": TOKENS,
    "answer": TOKENS,
    "price": from_0(1e6),
    "ttft_s": SECONDS,
    "tpot_s": SECONDS,
    "share": SHARE,
    "hours": above_0(24),
}


@dataclass(frozen=True)
class Question:
    """What somebody wants to know. None: the default of the use, the model or nothing at all (price)."""

    use: str = "chat"
    users: float | None = None  #: at once: with a session in progress
    sessions_a_day: float | None = None
    rps: float | None = None  #: requests a second
    gpus: int | None = None  #: the other question: how many users do these serve
    system: int | None = None  #: tokens of system prompt and tools
    new_tokens: int | None = None  #: median of a turn
    answer: int | None = None  #: median tokens
    model: str = "llama-3.1-8b"
    weights: str = "bf16"
    kv: str | None = None
    gpu: str = "h200"
    tp: tuple[int, ...] = ()  #: widths to choose from
    price: float | None = None  #: USD for a GPU and hour
    prices: tuple[tuple[str, float], ...] = ()  #: and of other GPUs, which the ways out are told in
    ttft_s: float | None = None
    tpot_s: float | None = None
    share: float = 0.95  #: of the requests
    router: str | None = None
    hours: float = DAY_HOURS  #: of a day in which its sessions come
    settings: tuple[str, ...] = ()  #: a.b=VALUE, any other key of the scenario

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            if (value := getattr(self, name)) is not None:
                within(flag(name), value, limit)
        if self.use not in USES:
            raise InputError(f"--use {self.use}: expected one of {', '.join(USES)}{did_you_mean(self.use, USES)}")
        for gpu, usd in self.prices:
            _one_of("--price", gpu_name(gpu), known_gpus())
            within(f"--price {gpu}", usd, LIMITS["price"])
        _one_of("--weights", self.weights, DTYPES)
        if self.kv is not None:
            _one_of("--kv", self.kv, KV_DTYPES)
        for width in self.tp:
            _one_of("--tp", width, WIDTHS)
        loads = [name for name in ("users", "sessions_a_day", "rps") if getattr(self, name) is not None]
        if len(loads) > 1:
            raise InputError(f"{' and '.join(map(flag, loads))}: expected one of them")
        if loads and self.gpus is not None:
            raise InputError(f"--gpus asks how many users they serve; expected it without {flag(loads[0])}")
        if not loads and self.gpus is None:
            raise InputError("expected a load (--users, --sessions-a-day or --rps), or --gpus to ask how many users")


FLAGS = {"new_tokens": "--input", "share": "--for", "ttft_s": "--ttft", "tpot_s": "--tpot", "settings": "--set"}


def flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def _one_of(name: str, value: object, known: Iterable[object]) -> None:
    if value not in known:
        near = did_you_mean(value, map(str, known))
        raise InputError(f"{name} {value}: expected one of {', '.join(map(str, known))}{near}")


def question_of(args: Namespace) -> Question:
    """The question of parsed flags. of `kvcast.ask_flags`. Raises InputError for one that cannot be asked."""
    same = ["use", "users", "sessions_a_day", "hours", "rps", "gpus", "system", "model", "weights", "kv", "gpu", "tp"]
    same += ["router", "share"]
    listed = {gpu_name(name or args.gpu): usd for name, usd in args.price.items()}
    return Question(
        **{name: getattr(args, name) for name in same},
        price=listed.pop(gpu_name(args.gpu), None),
        prices=tuple(sorted(listed.items())),
        new_tokens=args.input,
        answer=args.output,
        ttft_s=args.ttft,
        tpot_s=args.tpot,
        settings=tuple(args.settings),
    )


@dataclass(frozen=True)
class Asked:
    """A question with its defaults filled in: the use sized to the model, and scenarios at any load and width."""

    question: Question

    @property
    def use(self) -> Use:
        return USES[self.question.use]

    @functools.cached_property
    def sized(self) -> Sized:
        """The mix, for the model's context or a shorter `engine.max_model_len` of the settings."""
        asked = self.question
        plain = self._with(WorkloadConfig(rate=1.0, class_=(self.use.class_,)), None, 1, 1)
        context = min(model_of(plain).max_context, plain.engine.max_model_len or MAX_TOKENS)
        return sized(self.use, context, asked.system, asked.new_tokens, asked.answer)

    @property
    def router(self) -> str:
        return self.question.router or (KEEPS_SESSIONS if self.sized.turns > 1 else EVEN)

    @property
    def slo(self) -> SloConfig:
        asked, use = self.question, self.use
        given = asked.ttft_s is not None or asked.tpot_s is not None
        ttft_s = asked.ttft_s if given else use.ttft_s
        return SloConfig(ttft_s, asked.tpot_s if given else use.tpot_s, attainment=asked.share)

    def price_of(self, gpu: str) -> float | None:
        """USD an hour of a GPU, where it was said."""
        asked = self.question
        listed = {gpu_name(name): usd for name, usd in asked.prices}
        return asked.price if gpu_name(gpu) == gpu_name(asked.gpu) else listed.get(gpu_name(gpu))

    @property
    def rate(self) -> float:
        """Sessions of the mix a second. InputError where the question gives no load."""
        asked = self.question
        if asked.users is not None:
            return self.rate_of(asked.users)
        if asked.sessions_a_day is not None:
            return asked.sessions_a_day * self.sized.parts / (asked.hours * 3600)
        if asked.rps is not None:
            return asked.rps / self.sized.turns
        raise InputError("--gpus: the number of users is what is asked for; there is no load to plan for")

    def rate_of(self, users: float) -> float:
        return users / self.sized.user_s

    def users(self, rate: float) -> float:
        """Users at once of so many sessions of the mix a second: Little's law with the mix's own times."""
        return rate * self.sized.user_s

    def scenario(self, rate: float, width: int = 1, replicas: int = 1) -> Scenario:
        """The scenario underneath. rate: sessions of the mix a second."""
        mix = replace(self.sized.mix, rate=float(f"{rate:.6g}"))
        return self._with(mix, self.sized.context, width, replicas)

    def _with(self, mix: WorkloadConfig, context: int | None, width: int, replicas: int) -> Scenario:
        asked = self.question
        made = Scenario(
            workload=mix,
            name=f"ask: {self.use.title}",
            model=ModelConfig(**model_named(asked.model), dtype=asked.weights, kv_dtype=asked.kv),
            hardware=HardwareConfig(gpu=asked.gpu, tensor_parallel=width),
            engine=EngineConfig(max_model_len=context),
            cluster=ClusterConfig(replicas=replicas, router=self.router if context else EVEN),
            slo=self.slo,
            cost=CostConfig(gpu_hour_usd=asked.price),
        )
        if not asked.settings:
            return made
        return scenario_from_doc(override(tomllib.loads(dumps(made)), asked.settings), "--set")


def model_named(name: str) -> dict[str, str]:
    """[model] name or config: a bundled model, a config.json, or what a published checkpoint is called for short."""
    if name in bundled_models() or name.startswith(PREFIX):
        return {"name": name}
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        return {"config": str(path)}
    found = [one for one in published_names() if _called(name, one)]
    plain = sorted(found, key=lambda one: (bool(hugging_face_names()[one.lower()][1]), len(one), one))
    return {"name": f"{PREFIX}{plain[0]}" if plain else name}


def _called(name: str, published: str) -> bool:
    """Whether a published name begins as this one does, without its organisation."""
    own = published.rpartition("/")[2].lower()
    return own == name.lower() or own.startswith(f"{name.lower()}-")
