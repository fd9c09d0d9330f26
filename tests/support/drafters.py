"""Drafter models for tests: right and wrong on purpose."""

import torch


class NotingDrafter:
    """Keeps the hidden states that it is given and drafts right, wrong, right, ... on purpose.

    The text that it drafts from is found by the seed's place, so it needs no model.
    """

    def __init__(self, vocab: int, texts: list[list[int]]) -> None:
        self.vocab, self.texts = vocab, texts
        self.held: dict[int, torch.Tensor] = {}
        self.drafts: list[tuple[int, int, int]] = []

    def extend(self, slot, start, hidden):
        old = self.held.get(slot)
        if start == 0:
            self.held[slot] = hidden.clone()
            return
        assert len(old) >= start, "a gap in the hidden states"
        self.held[slot] = torch.cat((old[:start], hidden))

    def draft(self, slot, seed, start, block):
        assert len(self.held[slot]) >= start, "a draft needs every committed position"
        self.drafts.append((slot, start, block))
        logits = torch.zeros(block, self.vocab)
        text = next(t for t in self.texts if len(t) > start and t[start] == seed)
        for j in range(1, block):
            right = text[start + j] if start + j < len(text) else 7
            wrong = len(self.drafts) % block == j
            logits[j, (right + 1) % self.vocab if wrong else right] = 9.0
        return logits
