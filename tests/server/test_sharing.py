"""What the branches of a group share, and where states are left for them."""

import pytest

from server_ext.sharing import price_of_sharing, producer_boundaries, shared_boundary


@pytest.mark.parametrize(
    ("document", "context", "branches", "shared"),
    [
        (1000, 1000, 4, 1000),
        (1000, 1030, 4, 1030),
        (1000, 1030, 1, 1000),  # nobody to share with
        (1000, 1030, 2, 1030),  # two units of 16 against a row of 16
        (1001, 1008, 400, 1001),  # no unit ends between them: nothing to resume at
        (1008, 1009, 4, 1009),  # one token further, one does
        (0, 40, 4, 40),
        (0, 0, 4, 0),
    ],
)
def test_a_question_is_shared_where_that_saves_more_than_a_row(
    document: int, context: int, branches: int, shared: int
) -> None:
    found = shared_boundary(document, context, branches, match_unit=16, price=16)
    assert found == shared


@pytest.mark.parametrize(
    ("others", "price"), [(0, 272), (1, 144), (7, 48), (255, 17), (10_000, 16)]
)
def test_the_groups_under_way_share_the_round(others: int, price: int) -> None:
    assert price_of_sharing(16, 256, others) == price


def test_a_high_price_leaves_the_question_to_the_branches() -> None:
    options = {"match_unit": 16, "price": 1000}
    assert shared_boundary(1000, 1030, 4, **options) == 1000
    assert shared_boundary(1000, 1030, 400, **options) == 1030


@pytest.mark.parametrize(
    ("document", "shared", "branches", "boundaries"),
    [
        (1000, 1030, 4, (1000, 1030)),
        (1000, 1000, 4, (1000,)),
        (1000, 1030, 1, ()),
        (16, 40, 4, (40,)),  # shorter than a unit: no state to leave
        (1000, 900, 4, (900,)),  # a branch's own tokens begin inside the document
    ],
)
def test_where_producers_leave_states(
    document: int, shared: int, branches: int, boundaries: tuple[int, ...]
) -> None:
    assert producer_boundaries(document, shared, branches, 16) == boundaries
