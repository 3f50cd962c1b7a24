"""What a scheduler policy is, and where its settings come from.

Turns configuration (``--additional-config '{"radixflow": {...}}'``, or the
``RADIXFLOW_POLICY`` environment variable) into one frozen `Policy`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

__all__ = [
    "ADMIN_KEY_VARIABLE",
    "DEFAULT_POLICY",
    "PAGE_VARIABLE",
    "POLICIES",
    "POLICY_VARIABLE",
    "ConfigurationError",
    "Policy",
    "page_wanted",
    "policy_from_config",
    "policy_named",
]

POLICY_VARIABLE = "RADIXFLOW_POLICY"
"""Environment variable that names the policy where the server's config does not."""
ADMIN_KEY_VARIABLE = "RADIXFLOW_ADMIN_KEY"
"""Environment variable that holds the key of the operators' routes."""
PAGE_VARIABLE = "RADIXFLOW_PAGE"
"""Environment variable that is ``1`` where the server shows its live page."""

MAX_HOLD_MS = 1000.0
MAX_SCAN = 1_000_000
MAX_COST = 1_000_000
CPU_COSTS = (8, 32)


class ConfigurationError(ValueError):
    """The server cannot run as configured; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a waiting branch may run.  Never what is computed for it.

    Attributes:
        name: the preset's name, or the preset's with a ``*`` where it was altered.
        traversal: skip a BLOCKED branch for this round and go on with the scan
            (state-ready traversal) instead of ending the round there (prefix-stop).
        readiness: ``exact``: a state published in an earlier round is READY;
            ``native``: what the installed vLLM says (0.32.0 has false dependencies).
        tree: find the points at which prompts part, let one request compute each
            shared prefix and leave a checkpoint there, and let the others wait for it.
        hints: with ``tree``, use the boundaries and numbers of branches that requests
            announce.
        admission: hold an arrived branch ``none``, for a fixed time (``timer``, read
            when the branch is visited), or until there is a full round (``flex``).
        hold_ms: longest hold in milliseconds.
        frag: defer a branch whose next chunk the remaining token budget would cut
            short.
        max_deferred: for ``frag``: maximum branches that a round defers.
        row_tokens: what one more request in a round costs, in tokens computed; None:
            see `default_costs`.
        round_tokens: what one more round costs, in tokens computed; None: likewise.
        scan_limit: maximum BLOCKED or deferred branches that a round visits.
        fence: READY waits until the round that wrote the state has been processed:
            ``auto`` across pipeline stages; ``off`` also trusts the rounds in flight
            of a request that is aborted.
    """

    name: str
    traversal: bool = False
    readiness: Literal["native", "exact"] = "native"
    tree: bool = False
    hints: bool = False
    admission: Literal["none", "timer", "flex"] = "none"
    hold_ms: float = 5.0
    frag: bool = False
    max_deferred: int = 32
    row_tokens: int | None = None
    round_tokens: int | None = None
    scan_limit: int = 256
    fence: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigurationError: a value of the wrong type or out of bounds.
        """
        hints = get_type_hints(type(self))
        for name, kind in hints.items():
            _check_kind(name, getattr(self, name), kind)
        if not 0 < self.hold_ms <= MAX_HOLD_MS:
            raise ConfigurationError(
                f"hold_ms must be above 0 and at most {MAX_HOLD_MS:.0f}, "
                f"got {self.hold_ms}"
            )
        for name in ("scan_limit", "max_deferred"):
            if not 1 <= (most := getattr(self, name)) <= MAX_SCAN:
                raise ConfigurationError(
                    f"{name} must be from 1 to {MAX_SCAN}, got {most}"
                )
        for name in ("row_tokens", "round_tokens"):
            if not 0 <= (getattr(self, name) or 0) <= MAX_COST:
                raise ConfigurationError(
                    f"{name} must be from 0 to {MAX_COST}, got {getattr(self, name)}"
                )
        if self.tree and not (self.traversal and self.readiness == "exact"):
            raise ConfigurationError(
                "tree needs traversal and exact readiness: set traversal to true and "
                "readiness to exact, or leave tree out"
            )

    @property
    def native(self) -> bool:
        """Whether nothing is added to the native schedule."""
        alike = replace(self, name="radix", row_tokens=None, round_tokens=None)
        return alike == POLICIES["radix"]

    def on(self, device: str, weights: float) -> Policy:
        """The policy with default costs where it leaves them open; see `default_costs`.

        Args:
            device: type of vLLM's device, such as ``cpu`` or ``cuda``.
            weights: weights that a token passes on each device, in billions.
        """
        row, round_ = default_costs(device, weights)
        return replace(
            self,
            row_tokens=row if self.row_tokens is None else self.row_tokens,
            round_tokens=round_ if self.round_tokens is None else self.round_tokens,
        )

    def as_dict(self) -> dict[str, Any]:
        """The policy as JSON-ready data."""
        return asdict(self)


def default_costs(device: str, weights: float) -> tuple[int, int]:
    """What a row and a round cost on a device, in tokens computed.

    A round reads all weights once, which takes as long as to compute about 150 tokens
    with them, whatever their number (H100 at the shares of its data-sheet rates that
    `replay.cards` assumes).  Launches and planning take 3 ms a round and 28 us a row,
    and a token 5.4 us for each billion weights.  On a CPU a round costs little.

    Args:
        device: type of vLLM's device.
        weights: weights that a token passes on each device, in billions.
    """
    if device == "cpu":
        return CPU_COSTS
    weights = max(weights, 0.05)
    return max(1, round(7 / weights)), round(150 + 550 / weights)


def _check_kind(name: str, value: object, kind: Any) -> None:
    if kind == int | None:
        if value is None:
            return
        kind = int
    choices = get_args(kind)
    if choices:
        right = value in choices and isinstance(value, str)
    elif kind is float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        right = type(value) is kind
    if not right:
        wanted = f"one of {', '.join(choices)}" if choices else f"a {kind.__name__}"
        raise ConfigurationError(f"{name} must be {wanted}, got {value!r}")


_TRAVERSAL: Mapping[str, Any] = {"traversal": True, "readiness": "exact"}

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("radix"),
        Policy("timer5", admission="timer", hold_ms=5.0),
        Policy("timer10", admission="timer", hold_ms=10.0),
        Policy("radix+flex", admission="flex"),
        Policy("radixflow", admission="flex", **_TRAVERSAL),
        Policy(
            "radixflow+frag",
            admission="flex",
            frag=True,
            max_deferred=256,
            **_TRAVERSAL,
        ),
        Policy("radixflow+", tree=True, hints=True, frag=True, **_TRAVERSAL),
    )
}
"""The presets: the six of arXiv 2610.18143, and ``radixflow+``, ours.

``radix`` is the native schedule, bit for bit.  The paper's traversal runs on a native
check without false dependencies, so its presets have exact readiness here.
"""

DEFAULT_POLICY = "radixflow+"
_SETTINGS = tuple(field.name for field in fields(Policy) if field.name != "name")


def policy_named(name: object) -> Policy:
    """The preset called `name`.

    Raises:
        ConfigurationError: there is no such preset.
    """
    if not isinstance(name, str) or name not in POLICIES:
        raise ConfigurationError(
            f"unknown RadixFlow policy {name!r}: choose one of {', '.join(POLICIES)}"
        )
    return POLICIES[name]


def policy_from_config(
    additional_config: object, environ: Mapping[str, str] | None = None
) -> Policy:
    """Read the policy from vLLM's ``additional_config``, else from the environment.

    Args:
        additional_config: vLLM's value; a mapping whose ``radixflow`` key may hold a
            preset's name under ``policy`` and any of its settings beside it.
        environ: environment to read, by default this process's.

    Raises:
        ConfigurationError: an unknown key, a wrong value, or no such preset.
    """
    environ = os.environ if environ is None else environ
    section: object = {}
    if isinstance(additional_config, Mapping):
        section = additional_config.get("radixflow", {})
    if not isinstance(section, Mapping):
        raise ConfigurationError(
            f"additional_config.radixflow must be an object, got {section!r}"
        )
    unknown = sorted(str(key) for key in section if key not in ("policy", *_SETTINGS))
    if unknown:
        raise ConfigurationError(
            f"unknown key {unknown[0]!r} in additional_config.radixflow: the keys are "
            f"policy, {', '.join(_SETTINGS)}"
        )
    preset = policy_named(
        section.get("policy") or environ.get(POLICY_VARIABLE) or DEFAULT_POLICY
    )
    altered = {key: value for key, value in section.items() if key != "policy"}
    return replace(preset, name=f"{preset.name}*", **altered) if altered else preset


def page_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the server shows its live page.

    Raises:
        ConfigurationError: the variable is neither 1 nor 0.
    """
    given = environ.get(PAGE_VARIABLE, "") or "0"
    if given not in ("0", "1"):
        raise ConfigurationError(f"{PAGE_VARIABLE} is {given!r}: set it to 1 or 0")
    return given == "1"
