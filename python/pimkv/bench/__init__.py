"""What an allocator operation costs. Wall-clock figures live here and never in the result of a run."""
