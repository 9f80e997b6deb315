"""Does every registered policy keep the contract of all? Nothing here knows a policy by name."""

from __future__ import annotations

from pimkv import _pimkv, allocators, reference


def test_a_policy_is_registered_once_and_known_everywhere() -> None:
    rust, twins = _pimkv.Pool.kinds(), reference.Pool.kinds()
    assert sorted(rust) == sorted(twins) == list(allocators.policies())
    assert len(set(rust)) == len(rust)
    assert set(rust) <= set(allocators.kinds())
    # An allocator that is no policy by its own name stands on one.
    assert {allocators.options_of(kind).policy or kind for kind in allocators.kinds()} <= set(rust)
