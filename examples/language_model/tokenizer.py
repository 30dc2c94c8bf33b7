"""Byte-pair encoding: letters, and the pairs that follow each other most often, pair by pair."""

import re
from collections import Counter
from itertools import pairwise


def words(text):
    return re.findall(r" ?[A-Za-z]+|[^A-Za-z]", text)


def joined(word, pair):
    """A word's tokens with a pair as one."""
    out, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


class Tokenizer:
    """Learns tokens from a text; what `encode` gives of another one, `decode` makes text again, but for new letters."""

    def __init__(self, text, size):
        count = {tuple(word): n for word, n in Counter(words(text)).items()}
        self.tokens, self.merges, self._known = sorted(set(text)), [], {}
        while len(self.tokens) < size:
            pairs = Counter()
            for word, n in count.items():
                for pair in pairwise(word):
                    pairs[pair] += n
            if not pairs:
                break
            best = max(pairs, key=lambda p: (pairs[p], p))
            self.merges.append(best)
            self.tokens.append("".join(best))
            count = {joined(word, best) if best[0] in word else word: n for word, n in count.items()}
        self._number = {token: i for i, token in enumerate(self.tokens)}

    def encode(self, text):
        found = []
        for word in words(text):
            if word not in self._known:
                parts = tuple(word)
                for pair in self.merges:
                    if len(parts) > 1 and pair[0] in parts:
                        parts = joined(parts, pair)
                self._known[word] = [self._number[p] for p in parts if p in self._number]  # letters that it knows
            found += self._known[word]
        return found

    def decode(self, numbers):
        return "".join(self.tokens[n] for n in numbers)
