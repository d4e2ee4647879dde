"""Pickles of plain values are those of `pickle`; others are refused before anything is called or allocated."""

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.trace.hangs import plain_pickle

HEAD = b"\x80\x02"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@given(value=VALUES)
def test_values_are_those_of_pickle(protocol, value):
    shared = [value, value]
    assert plain_pickle.loads(pickle.dumps(shared, protocol)) == shared


def test_value_that_contains_itself_is_loaded():
    value: list = []
    value.append(value)
    loaded = plain_pickle.loads(pickle.dumps(value))
    assert loaded[0] is loaded


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (HEAD + b"cos\nsystem\n(S'true'\ntR.", "GLOBAL 'os system'"),
        (b"(S'true'\nios\nsystem\n.", "STRING"),
        (b"(I1\nios\nsystem\n.", "INST 'os system'"),
        (HEAD + b"\x82\x01.", "EXT1"),
        (HEAD + b"Pabc\n.", "PERSID 'abc'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (HEAD + b"]" + b"2" * 9 + b".", "DUP"),
        (HEAD + b"\x8e" + struct.pack("<Q", 1 << 40) + b".", "BINBYTES8|expected 1099511627776 bytes"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 31) + b".", "expected 2147483648 bytes"),
        (HEAD + b"\x8d" + struct.pack("<Q", 1 << 62) + b".", "expected 4611686018427387904 bytes"),
        (HEAD + b"}" + b")" + b"\x85" * 3 + b"K\x01s.", "a key is a tuple"),
        (HEAD + b"}]]s.", "a key is a list"),
        (HEAD + b"K\x01\x86.", "TUPLE2 without values"),
        (HEAD + b"}(K\x01u.", "argument 2 is shorter"),
        (HEAD + b"]", "pickle exhausted before seeing STOP"),
        (b"", "pickle exhausted before seeing STOP"),
    ],
)
def test_anything_else_is_refused_with_its_place(raw, why):
    with pytest.raises(ValueError, match=why):
        plain_pickle.loads(raw)


@pytest.mark.parametrize(
    "raw", [HEAD + b"h\x05.", HEAD + b"K\x01t.", HEAD + b"K\x01K\x02e.", HEAD + b"q\x01.", HEAD + b"."]
)
def test_wrong_stack_or_memo_is_an_error(raw):
    with pytest.raises((LookupError, ValueError, AttributeError)):
        plain_pickle.loads(raw)


def test_index_of_the_memo_takes_no_memory():
    """`pickle` allocates all entries before it: 16 GiB for these eight bytes."""
    assert plain_pickle.loads(HEAD + b"}r" + struct.pack("<I", 0x7FFFFFFF) + b".") == {}


def test_tuple_of_great_depth_is_no_key():
    """The hash of a tuple is that of what it contains: a C stack is as deep as this key."""
    with pytest.raises(ValueError, match="a key is a tuple"):
        plain_pickle.loads(HEAD + b"}" + b")" + b"\x85" * 300_000 + b"K\x01s.")
