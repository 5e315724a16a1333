"""Tokens, parents and hashes as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto.errors import Violation
from outrider_proto.packing import (
    MAX_TOKEN,
    PrefixHasher,
    common_prefix_len,
    pack_parents,
    pack_tokens,
    prefix_hash,
    unpack_parents,
    unpack_tokens,
)

tokens = st.lists(st.integers(0, MAX_TOKEN), max_size=300)


@given(tokens)
def test_tokens_round_trip_at_three_bytes_each(ids):
    data = pack_tokens(ids)
    assert len(data) == 3 * len(ids)
    assert unpack_tokens(data) == tuple(ids)


@pytest.mark.parametrize("bad", [-1, MAX_TOKEN + 1])
def test_tokens_that_do_not_fit(bad):
    with pytest.raises(Violation, match="token id"):
        pack_tokens([1, bad])


def test_torn_tokens():
    with pytest.raises(Violation, match="7 bytes of tokens"):
        unpack_tokens(bytes(7))


@given(st.lists(st.integers(-1, 253), max_size=255))
def test_parents_round_trip_at_one_byte_each(parents):
    assert unpack_parents(pack_parents(parents)) == tuple(parents)


@given(tokens, tokens)
def test_hash_tells_prefixes_apart(a, b):
    assert (prefix_hash(a) == prefix_hash(b)) == (a == b)


@given(st.lists(tokens, max_size=5), tokens)
def test_a_running_hash_is_that_of_the_whole(parts, more):
    hasher, whole = PrefixHasher(), []
    for part in parts:
        hasher.extend(part)
        whole += part
        assert hasher.length == len(whole)
        assert hasher.hash_with(*more) == prefix_hash([*whole, *more])


@given(tokens, tokens, tokens)
def test_common_prefix_ends_at_the_first_difference(shared, a, b):
    length = common_prefix_len([*shared, *a], (*shared, *b))
    assert [*shared, *a][:length] == [*shared, *b][:length]
    assert length == min(len(shared) + len(a), len(shared) + len(b)) or [*shared, *a][length] != [*shared, *b][length]
