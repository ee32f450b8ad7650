"""Messages of the control channel: they survive a round trip, and invalid ones are rejected."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_dist.control.wire import Framing, WireError, field, pack, prove, random_token, verify

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
messages = st.dictionaries(st.text(max_size=8), values, max_size=4)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(messages, max_size=3), st.data())
def test_any_split_of_the_stream_yields_the_same_messages(
    sent: list[dict[str, object]], data: st.DataObject
) -> None:
    stream = b"".join(pack(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    framing, got = Framing(1 << 16), []
    for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += framing.feed(stream[low:high])
    assert got == sent


@given(st.binary(max_size=200))
def test_strange_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        got = list(Framing(100).feed(data))
    except WireError:
        return
    assert all(isinstance(message, dict) for message in got)
    assert len(json.dumps(got)) <= 4 * len(data) + 2


def test_lengths_are_bounded_both_ways() -> None:
    with pytest.raises(WireError, match="at most 50"):
        list(Framing(50).feed((51).to_bytes(4, "big")))
    with pytest.raises(WireError, match="bytes"):
        pack({"text": "x" * 100}, limit=50)
    assert not list(Framing(50).feed((50).to_bytes(4, "big")))


UNUSABLE = {
    "lone surrogate": b'{"nonce": "\\ud800"}',
    "lone surrogate in a name": b'{"\\udfff": 1}',
    "encoded surrogate": b'{"nonce": "\xed\xa0\x80"}',
    "another encoding": '{"a": 1}'.encode("utf-16"),
    "no number": b'{"a": NaN}',
    "infinity": b'{"a": [-Infinity]}',
    "beyond floats": b'{"a": 1e999}',
    "beyond 64 bits": b'{"rank": 18446744073709551616}',
    "too deep": b'{"a":' * 34 + b"1" + b"}" * 34,
    "as deep as JSON goes": b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
}


@pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE)
def test_what_could_not_be_printed_or_packed_again_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="a JSON object") as caught:
        list(Framing(1 << 16).feed(len(body).to_bytes(4, "big") + body))
    str(caught.value).encode()


def test_texts_of_any_error_can_be_sent() -> None:
    sent = {"is": "raised", "error": "no file 'a\udcff'", "deep": [[[{"é": 2**64 - 1}]]]}
    (got,) = Framing(1 << 16).feed(pack(sent))
    assert got == sent | {"error": "no file 'a?'"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_not_packed(value: float) -> None:
    with pytest.raises(WireError, match="packing"):
        pack({"value": [value]})


@pytest.mark.parametrize("body", [b"[1]", b"1", b"{", b"\xff\xfe", b"[" * 5000, b""])
def test_only_objects(body: bytes) -> None:
    with pytest.raises(WireError, match="a JSON object"):
        list(Framing(1 << 16).feed(len(body).to_bytes(4, "big") + body))


@given(st.text(), st.one_of(st.none(), st.integers(), st.text()))
def test_only_the_right_proof_is_one(token: str, wrong: object) -> None:
    right = prove("secret", "rank", "a", "b")
    assert verify("secret", "rank", right, "a", "b")
    for case in (
        verify("secret", "rank", wrong, "a", "b"),
        verify("secret", "server", right, "a", "b"),
        verify("secret", "rank", right, "b", "a"),
        verify(token, "rank", right, "a", "b") and token != "secret",
    ):
        assert not case
    assert random_token() != random_token()


def test_fields_have_kinds() -> None:
    assert field({"n": 1}, "n", int) == 1
    for value in (True, "1", None, 1.0):
        with pytest.raises(WireError, match="int"):
            field({"n": value}, "n", int)
