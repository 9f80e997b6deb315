"""Many runs: the runner that spreads configs over processes or any other executor."""
