"""Hits that are remembered for as long as nobody can have lengthened them."""

from hypothesis import given
from hypothesis import strategies as st
from server_ext.looks import Looks


def test_a_hit_is_forgotten_once_its_next_unit_was_computed() -> None:
    looks = Looks()
    looks.keep("a", 0, "document")
    looks.keep("b", 16, "document, question")
    looks.keep("c", 32, None)
    looks.computed(["other", "document"])
    assert [looks.length(name) for name in "abcd"] == [None, 16, 32, None]
    looks.computed(["document", "document, question"])
    assert [looks.length(name) for name in "abc"] == [None, None, 32]
    looks.forget("c")
    looks.forget("never seen")
    assert len(looks) == 0


def test_the_last_hit_counts() -> None:
    looks = Looks()
    looks.keep("a", 0, "document")
    looks.keep("a", 16, "question")
    looks.computed(["document"])
    assert looks.length("a") == 16


names, keys = st.sampled_from("abc"), st.sampled_from("xyz")
steps = st.one_of(
    st.tuples(st.just("keep"), names, st.one_of(st.none(), keys)),
    st.tuples(st.just("computed"), st.lists(keys), st.none()),
    st.tuples(st.just("forget"), names, st.none()),
)


@given(st.lists(steps))
def test_it_is_a_table_of_requests(taken: list[tuple[str, str, str | None]]) -> None:
    looks, table = Looks(), dict[str, tuple[int, str | None]]()
    for length, (what, who, key) in enumerate(taken):
        if what == "keep":
            looks.keep(who, length, key)
            table[who] = (length, key)
        elif what == "computed":
            looks.computed(who)
            table = {n: row for n, row in table.items() if row[1] not in who}
        else:
            looks.forget(who)
            table.pop(who, None)
        assert {n: looks.length(n) for n in "abc"} == {
            n: table[n][0] if n in table else None for n in "abc"
        }
    for name in "abc":
        looks.forget(name)
    assert not looks
    assert not looks._behind  # nothing is kept of who is gone
    assert not looks._keys
