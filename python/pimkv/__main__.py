"""`python -m pimkv`: the `pimkv` command."""

from pimkv.cli import main

main(prog_name="python -m pimkv")
