#!/usr/bin/env bash
# The pictures of README.md and of the project's front page from the recorded runs beside it.
set -euo pipefail
cd "$(dirname "$0")"
seeds() { echo "runs/$1--0,runs/$1--1,runs/$1--2"; }
plot="${PYTHON:-../../.venv/bin/python} ../../tools/plot_runs.py"
$plot --out ../../docs/pictures/demo.png --panels test_accuracy,noise_ratio \
    "FedAvg=$(seeds high--fedavg)" "FedNoiL=$(seeds high--fednoil)"
$plot --out auto.png --panels test_accuracy,labelled_share \
    "auto, high noise=$(seeds high--fednoil-auto)" "auto, low noise=$(seeds low--fednoil-auto)" \
    "auto, clean=$(seeds clean--fednoil-auto)" "FedAvg, clean=$(seeds clean--fedavg)" \
    "frac 0.55, clean=$(seeds clean--fednoil)"
