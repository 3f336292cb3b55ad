"""Workers and verifiers that cheat, each through the whole pipeline, beside honest ones in the same setting."""
