"""From token ids to text as it grows: never half a character, nothing that a stop may take back.

Concatenated pieces are the text: there is no second way by which a whole answer is decoded.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import decoders

from recguide_core.model.tokenizer import Tokenizer
from recguide_core.serving.stops import StopFinder

REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """Text of one growing sequence."""

    def feed(self, token: int) -> str:
        """Characters that the token completes."""

    def flush(self) -> str:
        """What the sequence leaves incomplete, as replacement characters."""


class Vocabulary:
    """Bytes of each token of a byte-level tokenizer; None where tokens are no byte strings.

    Args:
        silent: ids that have no text (end of sequence), beside the special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, silent: frozenset[int] = frozenset()) -> None:
        self.tokenizer = tokenizer
        raw = tokenizer.raw
        special = {i for i, added in raw.get_added_tokens_decoder().items() if added.special}
        self.silent = silent | special
        self.byte_level = isinstance(raw.decoder, decoders.ByteLevel)
        self._bytes: dict[int, bytes] = {}
        self.longest = self._longest()

    def _longest(self) -> int | None:
        """Bytes of the longest token; None where text may shrink before it is tokenized."""
        raw = self.tokenizer.raw
        if not self.byte_level or raw.normalizer is not None:
            return None
        return max(len(name.encode()) for name in raw.get_vocab())

    def bytes_of(self, token: int) -> bytes:
        """UTF-8 (or a part of it) that the token stands for; special tokens by their name."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._spell(token)
        return found

    def _spell(self, token: int) -> bytes:
        name = self.tokenizer.raw.id_to_token(token) or ""
        if token in self.silent:
            return name.encode()
        if not self.byte_level:
            return self.tokenizer.decode([token], skip_special=False).encode()
        if all(letter in BYTE_OF for letter in name):
            return bytes(BYTE_OF[letter] for letter in name)
        return name.encode()

    def decoder(self) -> Decoder:
        """A fresh decoder for one sequence."""
        return ByteDecoder(self) if self.byte_level else WindowDecoder(self)


class ByteDecoder:
    """Exact decoding of byte-level tokens: bytes are held until they make a character."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        if token in self._vocabulary.silent:
            return ""
        return self._utf8.decode(self._vocabulary.bytes_of(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """Any other tokenizer: decode a short window twice and release what is new and whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._from = 0
        self._released = 0

    def feed(self, token: int) -> str:
        if token in self._vocabulary.silent:
            return ""
        self._ids.append(token)
        fresh = self._fresh()
        if not fresh or fresh.endswith(REPLACEMENT):
            return ""
        self._from, self._released = self._released, len(self._ids)
        return fresh

    def flush(self) -> str:
        fresh = self._fresh()
        self._from = self._released = len(self._ids)
        return fresh

    def _fresh(self) -> str:
        decode = self._vocabulary.tokenizer.decode
        known = decode(self._ids[self._from : self._released], skip_special=False)
        return decode(self._ids[self._from :], skip_special=False)[len(known) :]


class TextStream:
    """The text of one answer: `feed` tokens, `take` what may be shown, `finish` at the end.

    `feed` is the engine's stop rule, so it sees exactly the tokens that are emitted.

    Attributes:
        pieces: characters that each token completed; offsets: where in the text each began.
        stopped: a stop string is complete; what lies behind its start is dropped.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._finder = StopFinder(stops)
        self._pending = ""
        self._length = 0
        self.stopped = False
        self.pieces: list[str] = []
        self.offsets: list[int] = []

    def feed(self, token: int) -> bool:
        """Add a token; True when it completes a stop string."""
        piece = self._decoder.feed(token)
        self.pieces.append(piece)
        self.offsets.append(self._length)
        self._length += len(piece)
        self._pending += piece
        if piece and self._finder.stops:
            # Whatever a stop may begin with is still pending, so nothing shown is searched.
            at = self._finder.find(self._pending, len(piece))
            if at is not None:
                self._pending, self.stopped = self._pending[:at], True
        return self.stopped

    def take(self) -> str:
        """New text that no stop string can take back any more."""
        if self.stopped or not self._finder.stops:
            return self._release(len(self._pending))
        return self._release(len(self._pending) - self._finder.held(self._pending))

    def finish(self) -> str:
        """The rest of the text; incomplete bytes become replacement characters."""
        if not self.stopped:
            self._pending += self._decoder.flush()
        return self._release(len(self._pending))

    def _release(self, end: int) -> str:
        piece, self._pending = self._pending[:end], self._pending[end:]
        return piece


def _printable_bytes() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: a printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    table = {chr(byte): byte for byte in kept}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table


BYTE_OF = _printable_bytes()
