"""Incremental decoding against the tokenizer's own, token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.model.registry import bundled_folder
from recguide_core.model.tokenizer import Tokenizer
from recguide_core.serving.streaming import BYTE_OF, TextStream, Vocabulary, WindowDecoder

TOKENIZER = Tokenizer.read(bundled_folder())
VOCABULARY = Vocabulary(TOKENIZER)
IDS = st.lists(st.integers(0, TOKENIZER.raw.get_vocab_size() - 1), max_size=40)


def streamed(ids, decoder=None):
    stream = TextStream(decoder or VOCABULARY.decoder())
    parts = []
    for token in ids:
        stream.feed(token)
        parts.append(stream.take())
    parts.append(stream.finish())
    return parts


@given(IDS)
def test_pieces_add_up_to_the_tokenizers_text(ids):
    assert "".join(streamed(ids)) == TOKENIZER.decode(ids)


@given(st.text(max_size=40))
def test_no_piece_ever_holds_half_a_character(text):
    ids = TOKENIZER.encode(text)
    parts = streamed(ids)
    whole = TOKENIZER.decode(ids)
    assert "".join(parts) == whole
    if "\ufffd" not in whole:
        assert all("\ufffd" not in part for part in parts)


@pytest.mark.parametrize("text", ["žluť 🦀🦀", "日本語のテキスト", "e\u0301👩‍👩‍👧 ok"])
def test_characters_of_several_tokens_come_whole(text):
    ids = TOKENIZER.encode(text)
    parts = streamed(ids)
    assert len(ids) > len([p for p in parts if p]), "the text must need held bytes"
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


def test_incomplete_bytes_at_the_end_are_shown_as_replacement():
    ids = TOKENIZER.encode("🦀")
    assert len(ids) > 1
    assert "".join(streamed(ids[:-1])) == TOKENIZER.decode(ids[:-1])


@given(st.text(max_size=30))
def test_the_window_decoder_gives_the_same_text(text):
    ids = TOKENIZER.encode(text)
    assert "".join(streamed(ids, WindowDecoder(VOCABULARY))) == TOKENIZER.decode(ids)


def test_offsets_point_at_each_tokens_text():
    ids = TOKENIZER.encode("Gina has 14 eggs.")
    stream = TextStream(VOCABULARY.decoder())
    for token in ids:
        stream.feed(token)
    text = stream.finish()
    for offset, piece in zip(stream.offsets, stream.pieces, strict=True):
        assert text[offset : offset + len(piece)] == piece


def test_the_byte_alphabet_is_a_bijection():
    assert sorted(BYTE_OF.values()) == list(range(256))


def test_special_and_end_tokens_have_no_text():
    silent = Vocabulary(TOKENIZER, frozenset({50}))
    assert "".join(streamed([2, 50, 3], silent.decoder())) == ""
    assert silent.bytes_of(2) == b"<eos>"
