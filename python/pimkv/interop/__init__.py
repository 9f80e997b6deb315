"""Files that other simulators read, and what they print: pure writers and readers, no run and no file of its own.

`reads` places a sequence's bursts on an HBM3 stack; `attacc` and `ramulator2` each write one simulator's trace
and config and read its statistics. Written apart from the scorer, so that an exported stream checks it.
"""
