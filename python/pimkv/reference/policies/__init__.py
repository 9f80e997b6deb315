"""The twins of the free-block policies, one file each: `paged-fifo` is the class PagedFifo in `paged_fifo.py`."""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module

from pimkv.errors import InvalidArgument
from pimkv.reference.arguments import integer
from pimkv.reference.policy import Policy


def kinds() -> tuple[str, ...]:
    """The names of all policies, ascending."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def make_policy(kind: str, blocks: int, blocks_per_region: int) -> Policy:
    """A fresh policy of that kind with all blocks free; InvalidArgument for an unknown kind or a bad size."""
    names = kinds()
    if kind not in names:
        near = difflib.get_close_matches(str(kind), names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InvalidArgument(f"kind = {kind!r}: must be one of {', '.join(names)}{hint}")
    module = import_module(f"{__name__}.{kind.replace('-', '_')}")
    twin: type[Policy] = getattr(module, kind.title().replace("-", ""))
    return twin(integer("blocks", blocks, 1), integer("blocks_per_region", blocks_per_region, 1))
