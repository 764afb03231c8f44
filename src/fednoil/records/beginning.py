"""How a run starts in its folder: whether it may, and from the beginning or where it was stopped."""

from __future__ import annotations

from typing import Any

from fednoil import manifest, rounds
from fednoil.config.loading import load_config, to_toml
from fednoil.config.schema import Config
from fednoil.errors import UserError, few_of
from fednoil.experiment import Experiment
from fednoil.history import RoundRecord
from fednoil.records.checkpoint import Checkpoints
from fednoil.records.environment import changed_code, note, note_resumption
from fednoil.records.folder import RunFolder
from fednoil.records.older import read_current
from fednoil.setting import Setting, Sites


def check(folder: RunFolder, config: Config, *, resume: bool, force: bool, held: bool = False) -> None:
    """Refuse a folder that must not be written to; changes nothing. `held`: it is locked by this
    process."""
    folder.check(resume=resume, force=force)
    if not held and folder.is_held():
        raise UserError(f"{folder.path} is being written by another process; wait for it")
    if resume and folder.is_run():
        _same_config(folder, config)


def _same_config(folder: RunFolder, config: Config) -> None:
    """Refuse to resume a run with another configuration, and say what differs."""
    before = _recorded(folder)
    same = before.changed(rounds=config.train.rounds, select=config.run.select)
    if same.hash() == config.hash():
        if name := changed_code(folder.path, config):
            raise UserError(
                f"{folder.path}: the file of {name} has changed since this run began; put it back, choose another "
                "--out, or delete this folder to start over"
            )
        return _check_rounds(folder, before, config)
    old, new = before.model_dump(mode="json"), config.model_dump(mode="json")
    changed = [
        f"{section}.{key} is {old[section].get(key)!r} there and {new[section].get(key)!r} now"
        for section in new
        for key in {**old[section], **new[section]}
        if old[section].get(key) != new[section].get(key) and (section != "run" or key == "seed")
        if (section, key) != ("train", "rounds")
    ]
    raise UserError(
        f"{folder.path} is a run of another configuration: {few_of(changed, 3, '; ')}; "
        "choose another --out, or --force to start over, or leave the preset and these keys out to continue: "
        f"fednoil {'federation run' if _federated(folder) else 'run'} --resume --out {folder.path}"
    )


def _federated(folder: RunFolder) -> bool:
    roster = folder.roster()
    return roster is not None and roster.federated


def _recorded(folder: RunFolder) -> Config:
    """The configuration of the run in a folder."""
    path = folder.path / "config.toml"
    values = read_current(path)
    try:
        return load_config(values)
    except UserError as error:
        raise UserError(f"{path} is not a run's configuration: {error}") from None


def _check_rounds(folder: RunFolder, before: Config, config: Config) -> None:
    """A run can be given more rounds, unless something was promised for the rounds it had."""
    old, new = before.train.rounds, config.train.rounds
    if new < old:
        raise UserError(
            f"{folder.path} is a run of {old} rounds; train.rounds = {new} is fewer: give it as many or more"
        )
    if new > old and config.privacy.scores is not None:
        raise UserError(
            f"{folder.path}: privacy.scores is promised for all {old} rounds together, which more would break; "
            "choose another --out"
        )


def extended(folder: RunFolder, config: Config) -> str | None:
    """Give the run in a folder more rounds, or another model to end with, if `config` says so; returns what there is to
    know about its result."""
    before = _recorded(folder)
    if (before.train.rounds, before.run.select) == (config.train.rounds, config.run.select):
        return None
    (folder.path / "summary.json").unlink(missing_ok=True)  # from here on it is unfinished
    folder.write_config(to_toml(config))
    old, new = before.train.rounds, config.train.rounds
    if old == new or not (keys := config.by_total()):
        return None
    depend = "depends" if len(keys) == 1 else "depend"
    why = f"{' and '.join(keys)} {depend} on the number of rounds: the first were played as part of {old}, not of {new}"
    note(folder, extended={"from": old, "to": new, "keys": keys})
    return f"{why}, so this result differs from that of a single run of {new}"


def begin(
    experiment: Experiment,
    folder: RunFolder,
    checkpoints: Checkpoints,
    made_with: dict[str, Any],
) -> tuple[rounds.RunState, list[RoundRecord]]:
    """The state to continue from, with the records up to it; a new run's first files are written here."""
    folder.sweep()
    if checkpoints.exists():
        state = checkpoints.load(experiment.config)
        records = folder.keep_rounds(state.round_idx)
        note_resumption(folder, state.round_idx, made_with)
        if not (folder.path / "noise.parquet").is_file() and has_manifest(experiment.setting):
            _write_noise(folder, experiment.setting)
        return state, records
    folder.rounds_file.unlink(missing_ok=True)
    folder.write_config(to_toml(experiment.config))
    folder.write_environment(made_with)
    if experiment.given is not None:
        experiment.given.save(folder.path)
    folder.write_skipped(experiment.setting.dataset.about.skipped)
    if has_manifest(experiment.setting):
        _write_noise(folder, experiment.setting)
        folder.write_roster(experiment.setting.names, [len(part) for part in experiment.setting.parts])
    return rounds.start(experiment), []


def has_manifest(setting: Setting) -> bool:
    """Whether split and labels are known here; sites keep theirs."""
    return not isinstance(setting, Sites)


def _write_noise(folder: RunFolder, setting: Setting) -> None:
    dataset = setting.dataset
    path = folder.path / "noise.parquet"
    manifest.write_manifest(path, setting.parts, setting.labels, setting.truth, dataset.hash, dataset.num_classes)
