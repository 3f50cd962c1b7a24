"""Fair shares: what enters the engine next, for any mix of tenants and groups."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_ext.policy.fairness import SMALL_ROUNDS, Share, Ticket, Window

TOKENS, REQUESTS, ROUNDS = 160, 16, 2
EACH = TOKENS // REQUESTS


def window() -> Window:
    return Window(tokens=TOKENS, requests=REQUESTS, rounds=ROUNDS)


@dataclass
class Engine:
    """Serves what entered in order of arrival, a round at a time."""

    window: Window = field(default_factory=window)
    shares: dict[str, Share] = field(default_factory=dict)
    inside: list[str] = field(default_factory=list)
    tickets: dict[str, list[Ticket]] = field(default_factory=lambda: defaultdict(list))
    served: Counter[str] = field(default_factory=Counter)

    def ask(
        self, tenant: str, group: str, tokens: int = EACH, branches: int = 1000
    ) -> None:
        share = self.shares.setdefault(group, Share(tenant, branches, branches * EACH))
        ticket = self.window.ask(share, tokens, lambda: self.inside.append(group))
        self.tickets[group].append(ticket)

    def round(self, prefix: int = 0) -> None:
        """Those that fit end; `prefix` was computed for the first of them."""
        ended, spent = 0, 0
        while self.inside and ended < REQUESTS and spent < TOKENS:
            group = self.inside.pop(0)
            tickets = self.tickets[group]
            ticket = next(t for t in tickets if t.state in ("turn", "small"))
            tickets.remove(ticket)
            ended, spent = ended + 1, spent + ticket.cost
            for name in (str(ticket.share.tenant), group):
                self.served[name] += ticket.cost + prefix
            self.window.leave(ticket, ticket.cost + prefix)
            prefix = 0


def test_a_lone_group_fills_every_round() -> None:
    engine, rounds = Engine(), 0
    for _ in range(1000):
        engine.ask("a", "g")
    while engine.inside:
        assert len(engine.inside) >= min(REQUESTS, 1000 - rounds * REQUESTS)
        engine.round()
        rounds += 1
    assert rounds == -(-1000 // REQUESTS)
    assert engine.window.waiting == 0


@pytest.mark.parametrize("same_tenant", [True, False])
@pytest.mark.parametrize("large", [1, 4, 16, 64])
def test_a_small_group_ends_within_two_rounds_and_its_own(
    large: int, same_tenant: bool
) -> None:
    engine = Engine()
    for number in range(large):
        for _ in range(300):
            engine.ask("a" if same_tenant else f"t{number}", f"large-{number}")
    for _ in range(10):
        engine.round()
    for _ in range(4):
        engine.ask("a" if same_tenant else "small", "small", branches=4)
    rounds = 0
    while engine.tickets["small"]:
        engine.round()
        rounds += 1
    # What it finds is at most its bound; the overdraft of a round's last one included.
    assert rounds <= ROUNDS + 2


def test_a_tenant_gets_its_share_however_many_groups_another_one_sends() -> None:
    engine = Engine()
    for number in range(50):
        for _ in range(100):
            engine.ask("flood", f"g{number}")
    for _ in range(2000):
        engine.ask("calm", "one")
    for _ in range(100):
        engine.round()
    assert abs(engine.served["calm"] - engine.served["flood"]) <= 5 * TOKENS


def test_a_tenant_gets_its_share_beside_a_stream_of_new_groups() -> None:
    engine = Engine()
    for _ in range(2000):
        engine.ask("calm", "one")
    for number in range(200):
        for _ in range(REQUESTS):
            engine.ask("flood", f"new-{number}", branches=REQUESTS)
        engine.round()
    assert engine.window.waiting > 0
    assert engine.served["calm"] >= engine.served["flood"] - 5 * TOKENS


def test_shares_are_of_tokens_not_of_branches() -> None:
    engine = Engine()
    for _ in range(2000):
        engine.ask("long", "g", 4 * EACH)
        engine.ask("short", "h", EACH)
    for _ in range(200):
        engine.round()
    assert abs(engine.served["long"] - engine.served["short"]) <= 5 * TOKENS


def test_a_shared_prefix_is_charged_to_whoever_computed_it() -> None:
    engine = Engine()
    for _ in range(1200):
        engine.ask("first", "g")
    for _ in range(1200):
        engine.ask("second", "h")
    engine.round(prefix=20 * TOKENS)  # "first" came first
    for _ in range(70):
        engine.round()
    assert engine.served["first"] > 20 * TOKENS
    assert abs(engine.served["first"] - engine.served["second"]) <= 5 * TOKENS


def test_a_stream_of_new_groups_does_not_starve_an_old_one() -> None:
    engine = Engine()
    for _ in range(300):
        engine.ask("a", "old")
    for number in range(100):
        for _ in range(REQUESTS):
            engine.ask("a", f"new-{number}", branches=REQUESTS)
        engine.round()
    assert engine.window.waiting > 0
    assert engine.served["old"] >= 10 * TOKENS


def test_a_prompt_longer_than_the_window_enters_an_idle_engine() -> None:
    engine = Engine()
    engine.ask("a", "g", 1000 * TOKENS)
    assert engine.inside == ["g"]


def test_a_tenant_that_has_nothing_to_send_keeps_its_debt() -> None:
    engine = Engine()
    engine.ask("greedy", "g0", branches=1)
    for _ in range(800):
        engine.ask("calm", "g")
    engine.round(prefix=20 * TOKENS)
    for _ in range(800):
        engine.ask("greedy", "g1")
    for _ in range(15):
        engine.round()
    assert engine.served["g1"] <= 3 * TOKENS
    assert engine.served["g"] >= 12 * TOKENS


@settings(deadline=None, database=None, max_examples=200)
@given(st.data())
def test_any_mix_enters_once_and_nobody_waits_without_need(data: st.DataObject) -> None:
    gate = window()
    entered: Counter[int] = Counter()
    tickets: list[Ticket] = []
    shares: dict[str, Share] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        there = [ticket for ticket in tickets if ticket.state != "gone"]
        if there and data.draw(st.booleans()):
            computed = data.draw(st.integers(0, 9 * TOKENS))
            gate.leave(data.draw(st.sampled_from(there)), computed)
        else:
            tenant = data.draw(st.sampled_from("abc"))
            group = tenant + data.draw(st.sampled_from("xyz"))
            number = len(tickets)
            size = data.draw(st.sampled_from([1, 1000]))
            tickets.append(
                gate.ask(
                    shares.setdefault(group, Share(tenant, size, size)),
                    data.draw(st.integers(0, 3 * TOKENS)),
                    lambda n=number: entered.update([n]),  # type: ignore[misc]
                )
            )
        sizes = {
            state: sum(min(t.cost, TOKENS) for t in tickets if t.state == state)
            for state in ("turn", "small")
        }
        waiting = sum(ticket.state == "waiting" for ticket in tickets)
        assert gate.waiting == waiting
        # Work-conserving: nobody waits while the engine has less than its rounds.
        assert not waiting or sizes["turn"] >= ROUNDS * TOKENS
        # The last one to enter may pass a bound by its own size.
        assert sizes["turn"] < (ROUNDS + 1) * TOKENS
        assert sizes["small"] < (SMALL_ROUNDS + 1) * TOKENS
    for ticket in itertools.chain(tickets, tickets):
        if ticket.state in ("turn", "small"):
            gate.leave(ticket)
    while there := [t for t in tickets if t.state in ("turn", "small")]:
        gate.leave(there[0])
    assert all(ticket.state == "gone" for ticket in tickets)
    assert all(count == 1 for count in entered.values())
    assert gate.waiting == 0
    assert not any(gate._inside.values())


def test_an_open_window_admits_everybody_at_once() -> None:
    engine = Engine()
    for _ in range(500):
        engine.ask("a", "g")
    engine.window.open()
    assert (len(engine.inside), engine.window.waiting) == (500, 0)
    engine.ask("b", "h", tokens=10 * TOKENS)
    assert len(engine.inside) == 501


def test_nothing_is_kept_of_tenants_and_groups_that_ended() -> None:
    engine = Engine()
    for number in range(500):
        engine.ask(f"t{number}", f"g{number}", tokens=number)
        engine.round()
    engine.ask("last", "g")
    assert len(engine.window._turns.children) < 50
