"""What the simulated benchmarks share: a mixed stream at a load, replayed on a card."""

from __future__ import annotations

from server_ext.config import Policy
from server_ext.replay.cards import CARDS
from server_ext.replay.grid import capacity
from server_ext.replay.policies import Arm
from server_ext.replay.run import replay
from server_ext.replay.trace import Arrivals, Trace, arrive, paper_groups


def mixed_stream(
    policy: Policy, model: str, *, groups: int, load: float
) -> dict[str, float]:
    """All figures of one run, and the rate (groups a second) at which groups came.

    Args:
        policy: how it is scheduled; sent as our endpoint sends groups.
        model: name of a card.
        groups: groups of four branches, mixed regime, Poisson arrivals.
        load: 1 is the capacity of a server that computes every shared token once and
            fills every round.
    """
    sent = paper_groups(regime="mixed", questions=groups)
    rate = load * capacity(sent, CARDS[model])
    trace = Trace("mixed", arrive(sent, Arrivals("poisson", rate=rate)))
    arm = Arm(policy.name, policy, hints=True, fine=True, about="")
    return {**replay(trace, CARDS[model], arm, look_on=False).figures, "rate": rate}
