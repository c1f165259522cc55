"""The text: the King James Bible from Debian's package bible-kjv, as bytes, in shards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch

_BYTES_MIN = 4_000_000
_HELD_OUT = 0.05  # the end of the text is for validation


def read_text(cache: Path) -> bytes:
    """The whole text; kept in ``cache`` after the first call."""
    if not cache.exists():
        program = shutil.which("bible")
        if program is None:
            raise SystemExit("demo: the program 'bible' is missing; run scripts/setup")
        text = subprocess.run([program, "-f", "gen1:1-rev22:21"], check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout
        cache.write_bytes(text)
    text = cache.read_bytes()
    if len(text) < _BYTES_MIN:
        raise SystemExit(f"demo: {cache} has {len(text)} bytes of text; remove it and run again")
    return text


class Corpus:
    """Batches that depend on seed, step and rank only, so that any process can make any of them."""

    def __init__(self, cache: Path, workers: int, context: int, seed: int) -> None:
        self.size = cache.stat().st_size if cache.exists() else 0
        text = torch.frombuffer(bytearray(read_text(cache)), dtype=torch.uint8)
        self.size = text.numel()
        train = text[:int(self.size * (1 - _HELD_OUT))]
        self._held_out = text[train.numel():]
        self._shards = train.tensor_split(workers)
        self._context = context
        self._seed = seed

    def batch(self, step: int, rank: int, rows: int) -> torch.Tensor:
        """(rows, context + 1) int64 tokens from the shard of ``rank``."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step * 1009 + rank)
        return self._rows(self._shards[rank], generator, rows)

    def held_out(self, rows: int) -> torch.Tensor:
        """The same rows of validation text at every call."""
        return self._rows(self._held_out, torch.Generator().manual_seed(1), rows)

    def _rows(self, text: torch.Tensor, generator: torch.Generator, rows: int) -> torch.Tensor:
        length = self._context + 1
        starts = torch.randint(0, text.numel() - length, (rows,), generator=generator)
        return torch.stack([text[start:start + length] for start in starts.tolist()]).long()
