"""The arms of a replay: two native baselines, the paper's policies, and ours in parts.

An arm is a scheduler policy, how a group is sent (plain prompts, or hinted branches as
``POST /v1/branches`` sends them) and the finest boundary at which a branch can resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from server_ext.policy.config import POLICIES, Policy

__all__ = ["ARMS", "BASELINES", "PAPER", "PARTS", "Arm", "arm_named"]

MATCH_UNIT = 16
"""``radixflow serve`` sets it; stock vLLM resumes at whole blocks."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a trace.

    Attributes:
        name: what it is called.
        policy: the scheduler's policy.
        about: one line of description.
        hints: send groups as our endpoint does, with hints, else plain prompts.
        fine: hits may land on every 16th token, else only on whole blocks.
        calibrated: the costs of a slot and a round are those of the card, as
            ``radixflow replay calibrate`` finds them, else the defaults of a GPU.
    """

    name: str
    policy: Policy
    about: str
    hints: bool = False
    fine: bool = False
    calibrated: bool = False

    @property
    def fenced(self) -> Arm:
        """The same arm with the commit fence, where its policy skips BLOCKED branches.

        The native loop has no fence: it relies on one device that runs rounds in order.
        """
        if not self.policy.traversal:
            return self
        return replace(self, policy=replace(self.policy, fence="on"))


def _altered(name: str, **changes: object) -> Policy:
    return replace(POLICIES[name], name=f"{name}*", **changes)  # type: ignore[arg-type]


BASELINES: tuple[Arm, ...] = (
    Arm("radix-0.32", POLICIES["radix"], "vLLM 0.32.0, with its false dependencies"),
    Arm(
        "radix-0.33",
        _altered("radix", readiness="exact"),
        "native with exact readiness, as vLLM 0.33.0: the harder baseline",
    ),
)

PAPER: tuple[Arm, ...] = (
    Arm("timer5", POLICIES["timer5"], "fixed 5 ms hold (paper)"),
    Arm("timer10", POLICIES["timer10"], "fixed 10 ms hold (paper)"),
    Arm("radix+flex", POLICIES["radix+flex"], "flexible hold (paper)"),
    Arm("radixflow", POLICIES["radixflow"], "flex + traversal (paper)"),
    Arm(
        "radixflow+frag", POLICIES["radixflow+frag"], "flex + traversal + frag (paper)"
    ),
)

PARTS: tuple[Arm, ...] = (
    Arm(
        "traversal",
        _altered("radixflow", admission="none"),
        "exact readiness + traversal, without holds",
    ),
    Arm(
        "tree-frag",
        _altered("radixflow+", frag=False),
        "tree without fragment deferral",
        fine=True,
    ),
    Arm(
        "tree",
        POLICIES["radixflow+"],
        "radixflow+ with plain prompts: the scheduler finds the branch points",
        fine=True,
    ),
    Arm(
        "radixflow+",
        POLICIES["radixflow+"],
        "tree with the hints of our endpoint (ours)",
        hints=True,
        fine=True,
    ),
)

EXTRA: tuple[Arm, ...] = (
    *(
        replace(arm, name=f"{arm.name}/calibrated", calibrated=True)
        for arm in PARTS[2:]
    ),
    replace(BASELINES[1], name="radix-0.33/16", fine=True),
)

ARMS: Mapping[str, Arm] = {
    arm.name: arm for arm in (*BASELINES, *PAPER, *PARTS, *EXTRA)
}


def arm_named(name: str) -> Arm:
    """The arm called `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in ARMS:
        raise ValueError(f"unknown policy {name!r}: one of {', '.join(ARMS)}")
    return ARMS[name]
