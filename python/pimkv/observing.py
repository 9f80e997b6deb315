"""What a run sees of itself: every step scored, the published samples, and who else wants to look."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pimkv.backend import BlockManager, Ints, Scorer
from pimkv.config import Config, Geometry
from pimkv.metrics import device_of
from pimkv.result import Samples
from pimkv.scheduler import Watcher
from pimkv.sliding import Sliding

OnStep = Callable[[int, Ints, BlockManager], None]


class Observer(Watcher):
    """Scores every step, and keeps the published estimator's samples: a few random sequences of every
    sample_every-th step, drawn with seed + 1."""

    def __init__(
        self,
        config: Config,
        shape: Geometry,
        manager: BlockManager,
        scorer: Scorer,
        sliding: Sliding | None,
        on_step: OnStep | None,
    ) -> None:
        self.manager = manager
        self.scorer = scorer
        self.sliding = sliding
        regions = None if shape.row_groups else shape.blocks_per_region
        self.samples = Samples(shape.read_bytes, regions, device_of(config, shape))
        # Distinct units that a whole batch touches, summed over steps, for the row-batch bound.
        self.batch_units = 0
        self.scoring_s = 0.0
        self.checks: list[Callable[[], None]] = []
        self._every = config.scoring.sample_every
        self._most = config.scoring.sample_seqs
        self._rng = np.random.default_rng(config.seed + 1)
        self._row_batch = config.layout.traversal == "row-batch"
        self._per_unit = shape.unit.blocks
        self._on_step = on_step

    def step(self, step: int, seqs: Ints) -> None:
        begun = time.perf_counter()
        scores = self.scorer.observe(self.manager, seqs)
        self.scoring_s += time.perf_counter() - begun
        if self.sliding is not None:
            self.sliding.step(self.manager, seqs)
        if self._row_batch:
            blocks = np.concatenate([self.manager.table(seq) for seq in seqs.tolist()])
            self.batch_units += len(np.unique(blocks // self._per_unit))
        if step % self._every == 0:
            drawn = self._rng.choice(len(seqs), size=min(self._most, len(seqs)), replace=False)
            picked = np.argsort(seqs)[np.sort(drawn)]
            scored = np.column_stack([column[picked] for column in scores])
            self.samples.add(step, seqs[picked], scored, self.manager.placement(seqs[picked]))
        for check in self.checks:
            check()
        if self._on_step is not None:
            self._on_step(step, seqs, self.manager)

    def leave(self, seqs: Ints) -> None:
        self.scorer.settle(self.manager, seqs)
        self.scorer.forget(seqs)
        if self.sliding is not None:
            self.sliding.leave(seqs)
