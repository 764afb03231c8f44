import json
from pathlib import Path
base = ["run.device=cuda"]
def cell(noise, method, split="non-iid", seed=0, sets=()):
    return {"preset": f"paper/cifar10/{split}/{noise}/{method}", "seed": seed, "sets": list(sets), "folder": f"cifar10--{split}--{noise}--{method}--seed{seed}"}
plan = [{"name": f"recipe--{n}", "sets": base, "cells": [cell(n, "fednoil-recipe")]} for n in ("symmetric-high", "symmetric-low", "pair-high", "pair-low")]
Path(".gpu3/c22.json").write_text(json.dumps(plan))
