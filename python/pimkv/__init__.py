"""A paged KV-cache allocator that knows DRAM rows, and the laboratory that proves what that is worth."""
