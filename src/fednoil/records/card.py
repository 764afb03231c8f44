"""The model card: what a model was trained on and with, how good it is, and what it must not be taken for.

It follows Mitchell et al., "Model Cards for Model Reporting" (2019), with what a run knows by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fednoil import __version__
from fednoil.data.vectors import is_vector
from fednoil.errors import counted, few_of
from fednoil.experiment import Experiment
from fednoil.history import ACCURACY, AGREEMENT
from fednoil.records.compare import method_name

_NUMBERS = {
    "final_accuracy": "{:.2f} %",
    "balanced_accuracy": "{:.2f} %",
    "macro_f1": "{:.2f} %",
    "auroc": "{:.4f}",
    "calibration_error": "{:.2f} %",
    "val_accuracy": "{:.2f} %",
}
_NAMES = {
    "macro_f1": "macro F1",
    "auroc": "AUROC, each class against the rest",
    "val_accuracy": "agreement with labels that clients keep out of training",
}
_MOST = 50  # classes or clients in a table


def card(experiment: Experiment, summary: Mapping[str, Any], measures: Mapping[str, Any]) -> str:
    """The card of a finished run's model, in Markdown."""
    parts = [
        ("Model", _model(experiment, summary)),
        ("Data", _data(experiment)),
        ("Labels", _labels(summary)),
        ("Measures", _measures(summary, measures)),
        ("Limits", [f"- {line}" for line in _limits(experiment, summary)]),
    ]
    return "# Model card\n\n" + "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in parts) + "\n"


def _model(experiment: Experiment, summary: Mapping[str, Any]) -> list[str]:
    config, dataset, train = experiment.config, experiment.setting.dataset, experiment.training
    trained = sum(p.numel() for p in experiment.template.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in experiment.template.parameters() if not p.requires_grad)
    takes = f"rows of {dataset.image_shape[0]} columns"
    if not is_vector(dataset.image_shape):
        channels, height, width = dataset.image_shape
        takes = f"{'grey' if channels == 1 else 'RGB'} images of {width}×{height} pixels"
    method = method_name(config.model_dump(mode="json"))
    kept = f", of which round {summary['final_round']} is kept" if "final_round" in summary else ""
    return [
        f"- network: {config.model.name}, {trained:,} trained parameters" + (f", {frozen:,} frozen" if frozen else ""),
        f"- takes {takes}; classes: {few_of(dataset.class_names)}",
        f"- method: {method}, {counted(summary['rounds'], 'round')}{kept}, seed {config.run.seed}",
        f"- {train.optimizer}: learning rate {train.lr:g}, weight decay {train.decay:g}, batches of {train.batch_size}",
        f"- FedNoiL {__version__}; configuration {summary['config_hash'][:12]}, data {summary['data_hash'][:12]}",
    ]


def _data(experiment: Experiment) -> list[str]:
    setting, dataset = experiment.setting, experiment.setting.dataset
    sizes = [len(part) for part in setting.parts]
    span = f"{min(sizes)} to {max(sizes)}" if len(set(sizes)) > 1 else str(sizes[0])
    names = f" ({few_of(setting.names)})" if setting.names else ""
    lines = [
        f"- {experiment.config.data.name}: {sum(sizes):,} training samples of {len(sizes)} clients{names}, {span} each",
        f"- {len(dataset.test):,} test samples"
        + (", held out of the training samples" if dataset.about.held_out else ""),
    ]
    return lines + [f"- {notice}" for notice in dataset.about.notices]


def _labels(summary: Mapping[str, Any]) -> list[str]:
    ratios = {name: value for name, value in (summary.get("noise_ratios") or {}).items() if value is not None}
    if not ratios:
        return ["The share of wrong labels was not estimated."]
    middle = f"{100 * median(ratios.values()):.0f} %"
    lines = [f"Estimated share of wrong labels, by an audit without true labels: median {middle}.", ""]
    rows = [[name, f"{100 * value:.1f} %"] for name, value in list(ratios.items())[:_MOST]]
    return [*lines, *_table(["client", "labels wrong"], rows)]


def _measures(summary: Mapping[str, Any], measures: Mapping[str, Any]) -> list[str]:
    what = summary.get("measure", ACCURACY)
    names = {"final_accuracy": what, **_NAMES}
    rows = [
        [names.get(key, key.replace("_", " ")), form.format(summary[key])]
        for key, form in _NUMBERS.items()
        if summary.get(key) is not None
    ]
    lines = _table(["measure", "value"], rows) if rows else ["There was nothing to measure it on."]
    per_class, classes = measures.get("test", {}).get("per_class"), summary.get("classes", [])
    if per_class and len(classes) <= _MOST:
        keys = ("recall", "precision", "f1", "auroc")
        cells = [[name, *(_cell(per_class[key][c], key) for key in keys)] for c, name in enumerate(classes)]
        lines += ["", *_table(["class", "recall, %", "precision, %", "F1, %", "AUROC"], cells)]
    clients = list(measures.get("clients", {}).items())[:_MOST]
    if clients:
        own = [
            [name, str(one["samples"]), *(_cell(one[k], k) for k in ("accuracy", "macro_f1"))] for name, one in clients
        ]
        lines += ["", f"By client, on its {measures['clients_on']}:", ""]
        lines += _table(["client", "samples", "accuracy, %", "macro F1, %"], own)
    return lines


def _limits(experiment: Experiment, summary: Mapping[str, Any]) -> list[str]:
    """What the numbers above must not be taken for."""
    lines = []
    if summary.get("final_accuracy") is None:
        lines.append("Nothing was tested: it is not known how good the model is.")
    elif summary.get("measure") == AGREEMENT:
        lines.append("It was tested on given labels, some of which are wrong: the numbers are agreement with them.")
    if experiment.config.noise.kind not in ("none", "unknown"):
        lines.append(
            f"Labels were made wrong on purpose (noise.kind = '{experiment.config.noise.kind}'): an experiment's model."
        )
    elif summary.get("noise_ratios"):
        lines.append("Shares of wrong labels are estimates by the model itself; an audit has their intervals.")
    poor = [
        name
        for name, recall in zip(summary.get("classes", []), summary.get("per_class_accuracy") or [], strict=False)
        if recall is not None and recall < 50
    ]
    if poor:
        lines.append(f"Fewer than half of these classes' samples are recognised: {few_of(poor)}.")
    if (error := summary.get("calibration_error")) is not None and error > 10:
        lines.append(
            f"Its probabilities are off by {error:.0f} points on average: don't read them as chances of being correct."
        )
    if summary.get("final_accuracy") is not None:
        lines.append("It was measured only on samples like those that it was trained on.")
    return lines


def _cell(value: float | None, key: str) -> str:
    return "–" if value is None else f"{value:.3f}" if key == "auroc" else f"{value:.1f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
