"""What the branches of a group share, and where their state should be left.

The endpoint sends groups by these rules, and the replay the same groups without a
server.  Pure: token counts in, token counts out.
"""

from __future__ import annotations

__all__ = ["price_of_sharing", "producer_boundaries", "shared_boundary"]


def price_of_sharing(row_tokens: int, round_tokens: int, others: int) -> int:
    """What it costs to compute a question once for its branches, in tokens.

    The question has a row of its own, and its branches wait a round more.  The other
    groups under way run in that round too: each bears its part of it.

    Args:
        row_tokens: what a row is worth, in tokens.
        round_tokens: what a round is worth, in tokens.
        others: other groups under way.
    """
    return row_tokens + round_tokens // (1 + others)


def shared_boundary(
    document: int, context: int, branches: int, *, match_unit: int, price: int
) -> int:
    """After the document, or after the question too where recomputing it is dearer.

    Sharing the document alone computes the question with each branch.

    Args:
        document: tokens of the document.
        context: tokens of document and question.
        branches: branches of the group.
        match_unit: tokens between two boundaries that a hit can land on.
        price: what sharing the question costs, in tokens.
    """
    # A state is left at the last unit inside a prompt.
    units = max(context - 1, 0) // match_unit - max(document - 1, 0) // match_unit
    saved = units * match_unit * (branches - 1)
    return context if saved > price else document


def producer_boundaries(
    document: int, shared: int, branches: int, match_unit: int
) -> tuple[int, ...]:
    """Where a producer should leave a state: the shared boundary, and below it the
    document's end, at which groups with other questions will resume.

    Args:
        document: tokens of the document.
        shared: the shared boundary in tokens.
        branches: branches of the group; one alone has nobody to share with.
        match_unit: tokens between two boundaries that a hit can land on.
    """
    if branches == 1:
        return ()
    wanted = dict.fromkeys((min(document, shared), shared))
    return tuple(boundary for boundary in wanted if boundary > match_unit)
