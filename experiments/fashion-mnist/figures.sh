#!/usr/bin/env bash
# The pictures of README.md from the recorded runs beside it.
set -euo pipefail
cd "$(dirname "$0")"
R=runs
plot="${PYTHON:-../../.venv/bin/python} ../../tools/plot_runs.py --rounds 30"
$plot --out fednoil-and-fedavg.png --panels test_accuracy,noise_ratio \
    "FedNoiL, IID=$R/iid--symmetric-high--fednoil-logarithm--150" \
    "FedAvg, IID=$R/iid--symmetric-high--fedavg--30" \
    "FedNoiL, non-IID=$R/non-iid--symmetric-high--fednoil-logarithm--30" \
    "FedAvg, non-IID=$R/non-iid--symmetric-high--fedavg--30"
$plot --out fednoil-settings.png --panels test_accuracy,noise_ratio,label_precision,label_recall \
    "symmetric-high=$R/iid--symmetric-high--fednoil-logarithm--150" \
    "symmetric-low=$R/iid--symmetric-low--fednoil-logarithm--30" \
    "pair-high, per client=$R/iid--pair-high--fednoil-logarithm--30" \
    "pair-high, shared=$R/iid--pair-high-shared--fednoil-logarithm--30" \
    "non-IID, symmetric-high=$R/non-iid--symmetric-high--fednoil-logarithm--30"
