"""Which branches enter the engine next: fair shares for tenants and their groups.

The engine serves its queue in order of arrival, so whoever fills that queue delays
everybody else.  A `Window` bounds the work inside the engine to a few rounds and admits
the rest by deficit round robin: first over tenants, then over the groups of a tenant.
Branches of a group that is no more than one round's work may pass those that wait,
within a bound of their own.
Pure: branches are `Ticket` objects, and costs are numbers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

__all__ = ["Share", "Ticket", "Window"]

SMALL_ROUNDS = 1
"""Rounds of work that small groups may have in the engine, beside the others'."""


@dataclass(slots=True, eq=False)
class Share:
    """One group's part in the engine.

    Attributes:
        tenant: whose group it is.
        branches: its requests.
        tokens: tokens that they have, the shared prefix apart.
    """

    tenant: Hashable
    branches: int
    tokens: int


@dataclass(slots=True, eq=False)
class Ticket:
    """One branch that wants to enter, or is inside.

    Attributes:
        share: its group's.
        cost: tokens that the engine computes for it, its shared prefix apart.
        enter: called once, when it may enter.
        state: ``gone`` once it has left, or does not want to enter any more.
    """

    share: Share
    cost: int
    enter: Callable[[], None]
    state: str = "waiting"


@dataclass(slots=True)
class _Turns:
    """Deficit round robin over the children of one node.

    Each turn adds `quantum` to a child's credit, and the child is served until it has
    used its credit up.  The last branch of a turn may overdraw it.  A child that has
    nothing to send is forgotten once it has no debt, or once nobody waits at all.
    """

    quantum: int
    children: OrderedDict[Hashable, _Child] = field(default_factory=OrderedDict)
    waiting: int = 0

    def add(self, ticket: Ticket, path: tuple[Hashable, ...]) -> None:
        child = self.children.get(path[0])
        if child is None:
            turns = _Turns(self.quantum) if path[1:] else None
            child = self.children[path[0]] = _Child(self.quantum, turns)
        if child.turns is None:
            child.tickets.append(ticket)
        else:
            child.turns.add(ticket, path[1:])
        self.waiting += 1

    def remove(self, path: tuple[Hashable, ...]) -> None:
        """One ticket of `path` no longer waits."""
        child = self.children[path[0]]
        self.waiting -= 1
        if child.turns is None:
            while child.tickets and child.tickets[0].state != "waiting":
                child.tickets.popleft()
        else:
            child.turns.remove(path[1:])
        if not self.waiting:
            self.children.clear()
        elif child.is_empty and child.credit >= 0:
            del self.children[path[0]]

    def charge(self, path: tuple[Hashable, ...], cost: int) -> None:
        """Take `cost` from the credit of everybody on `path`."""
        if not self.waiting:
            return
        child = self.children.get(path[0])
        if child is None:
            turns = _Turns(self.quantum) if path[1:] else None
            child = self.children[path[0]] = _Child(self.quantum, turns)
        child.credit -= cost
        if child.turns is not None:
            child.turns.charge(path[1:], cost)

    def next(self) -> Ticket | None:
        """The ticket whose turn it is."""
        while self.waiting:
            key, child = next(iter(self.children.items()))
            if child.credit > 0 and not child.is_empty:
                return child.tickets[0] if child.turns is None else child.turns.next()
            child.credit = min(child.credit, 0) + self.quantum
            if child.is_empty and child.credit >= 0:
                del self.children[key]
            else:
                self.children.move_to_end(key)
        return None


@dataclass(slots=True)
class _Child:
    credit: int
    turns: _Turns | None
    tickets: deque[Ticket] = field(default_factory=deque)

    @property
    def is_empty(self) -> bool:
        return not (self.tickets if self.turns is None else self.turns.waiting)


class Window:
    """Admits branches into the engine, a few rounds of work at a time.

    Args:
        tokens: tokens of one round.
        requests: requests of one round.
        rounds: rounds of work in the engine: one that runs, and those that are planned
            or on their way while it does.
    """

    def __init__(self, *, tokens: int, requests: int, rounds: int) -> None:
        self._round = tokens
        self._least = max(tokens // requests, 1)
        self._turns = _Turns(tokens)
        self._small: deque[Ticket] = deque()
        self._bounds: dict[str, float] = {
            "small": SMALL_ROUNDS * tokens,
            "turn": rounds * tokens,
        }
        self._inside = {"small": 0, "turn": 0}

    @property
    def waiting(self) -> int:
        """Branches that wait outside."""
        return self._turns.waiting

    def ask(self, share: Share, tokens: int, enter: Callable[[], None]) -> Ticket:
        """Ask for a branch to enter.

        Args:
            share: its group's.
            tokens: tokens that the engine computes for it, its shared prefix apart.
            enter: called when it may enter, possibly before this method returns.
        """
        # A branch takes a request's share of a round, however few its tokens are.
        ticket = Ticket(share, max(tokens, self._least), enter)
        self._turns.add(ticket, (share.tenant, share))
        if max(share.tokens, share.branches * self._least) <= self._round:
            self._small.append(ticket)
        self._admit()
        return ticket

    def leave(self, ticket: Ticket, computed: int = 0) -> None:
        """The branch has ended, or does not want to enter any more.

        Args:
            ticket: the branch's.
            computed: tokens that the engine computed for it, a prefix that its group
                shares included: whoever computed that is charged.
        """
        path = (ticket.share.tenant, ticket.share)
        state, ticket.state = ticket.state, "gone"
        if state == "waiting":
            self._turns.remove(path)
        elif state != "gone":
            self._inside[state] -= self._size(ticket)
            self._turns.charge(path, max(computed - ticket.cost, 0))
        self._admit()

    def open(self) -> None:
        """Admit everybody from now on: the engine takes nobody later."""
        self._bounds = dict.fromkeys(self._bounds, float("inf"))
        self._admit()

    def _size(self, ticket: Ticket) -> int:
        """A long prompt counts for one round: those after it fill what it leaves."""
        return min(ticket.cost, self._round)

    def _admit(self) -> None:
        while self._inside["turn"] < self._bounds["turn"]:
            ticket = self._turns.next()
            if ticket is None:
                break
            self._enter(ticket, "turn")
        while self._small and self._inside["small"] < self._bounds["small"]:
            ticket = self._small.popleft()
            if ticket.state == "waiting" and not self._owes(ticket.share.tenant):
                self._enter(ticket, "small")

    def _owes(self, tenant: Hashable) -> bool:
        """Whether a tenant has overdrawn its share by a turn or more."""
        return self._turns.children[tenant].credit <= -self._round

    def _enter(self, ticket: Ticket, state: str) -> None:
        path = (ticket.share.tenant, ticket.share)
        ticket.state = state
        self._turns.charge(path, ticket.cost)
        self._turns.remove(path)
        self._inside[state] += self._size(ticket)
        ticket.enter()
