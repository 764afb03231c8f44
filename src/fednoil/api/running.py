"""`fednoil.run`: an experiment from start to end, in memory or in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fednoil.api.arrays import given_data
from fednoil.api.run import Run
from fednoil.config.loading import Values, load_config, merge
from fednoil.config.schema import Config
from fednoil.config.source import origin_of, read_source, values_of
from fednoil.data import SITES
from fednoil.data.given import Given
from fednoil.data.sites import TEST
from fednoil.errors import UserError
from fednoil.records.compare import method_name
from fednoil.records.folder import RunFolder
from fednoil.records.older import read_current
from fednoil.records.store import InFolder, Store
from fednoil.reporters import reporter_for
from fednoil.runner import Reporter, Simulation, carry_out

Source = str | Path | Config | Mapping[str, Any]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. `run` is the run so far: all its whole rounds, in memory, and in its folder if it has one."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def run(
    source: Source | None = None,
    *,
    seed: int | None = None,
    set: Mapping[str, Any] | None = None,
    data: Any = None,
    test: Any = None,
    class_names: Sequence[str] | None = None,
    true_labels: Any = None,
    out: str | Path | None = None,
    device: str | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool | Reporter | None = None,
) -> Run:
    """Run an experiment and return it.

    Args:
        source: A preset's name (`fednoil.presets()` lists them), a TOML file, a `fednoil.Config`, or a dict of sections
            or dotted keys. By default the preset `demo` or, with `resume`, what the run in `out` was made from.
        seed: Same as `run.seed`: it decides the split, the noise, the initial model and every draw.
        set: Keys to change, such as `{"train.rounds": 5}`.
        data: Your own data: a list of clients, or a dict by their names, each a pair (images, labels), a torch Dataset
            of such samples, or the name of data on disk, as in `{"nord": "folder:PATH"}`. A single pair, Dataset or
            name is dealt to clients by `partition`. Images are uint8, or fractions in 0..1, of shape [N, H, W],
            [N, H, W, C] or [N, C, H, W]; vectors [N, D] are numbers, with NaN for missing values, for a model such
            as `mlp`; labels are class numbers from 0, or strings. Labels are used as they are: a preset's noise is left
            out unless `set` adds some.
        test: A pair or Dataset to measure accuracy with, or the name of data on disk where `data` has one for each
            client. Without it accuracy is None for arrays; `set={"data.validation": 0.2}` then keeps a share of each
            client's samples out of training, and `Run.history` has the agreement with their given labels as
            `val_accuracy`.
        class_names: The names of the classes, in the order of their numbers.
        true_labels: True labels of the samples in `data`, in the same form; only metrics see them.
        out: A folder for the run. Without one nothing is written.
        device: `auto`, `cpu`, `cuda` or `mps`.
        data_dir: Where to find named datasets; by default `$FEDNOIL_DATA`.
        resume: Continue the run in `out`, or start it there from `source` if there is none.
        force: Start over, replacing the run in `out`.
        progress: Whether to show progress; by default on a terminal and in a notebook.

    Raises:
        UserError: An argument is wrong; the message says what would be right.
        Interrupted: Ctrl-C; its `run` is the run so far.
    """
    if resume and force:
        raise UserError("--resume and --force exclude each other: continue the run, or start over")
    if out is None and (resume or force):
        raise UserError(f"{'resume' if resume else 'force'}=True needs the run's folder; give it with out=")
    folder = None if out is None else Path(out)
    changes, own = values_of(set or {}), _named_data(data)
    for values in (changes, values_of(source) if isinstance(source, Mapping) else {}):
        if data is not None and (name := values.get("data", {}).get("name")) is not None:
            raise UserError(f"data.name = {name!r} and data= both say where the data are; leave one of them out")
    if own:
        if isinstance(test, str) and own["name"] == SITES:
            if TEST in own["sites"]:
                raise UserError(f"data has a client '{TEST}', whose data test the model, and test= is given; keep one")
            own["sites"][TEST], test = test, None
        changes = changes | {"data": changes.get("data", {}) | own}
        data = None
    given = _given(data, test, class_names, true_labels)
    made = resolve(source, changes, given, folder if resume else None, seed, device)
    store = Store() if folder is None else InFolder(folder, resume=resume, force=force)
    return carried_out(made, store, None if data_dir is None else Path(data_dir), progress, given)


def carried_out(
    made: Resolved, store: Store, data_dir: Path | None, progress: bool | Reporter | None, given: Given | None = None
) -> Run:
    """Carry out a run."""
    store.origin = made.origin
    reporter = reporter_for(progress)
    try:
        carry_out(made.config, store, reporter, Simulation(data_dir, given, reporter.decoding))
    except KeyboardInterrupt as stop:
        if store.state is None:
            raise
        raise _interrupted(Run.of(store, made.name)) from stop
    finally:
        reporter.close()
    return Run.of(store, made.name)


def _interrupted(run: Run) -> Interrupted:
    hint = "" if run.path is None else f"; continue with fednoil.run(out='{run.path}', resume=True)"
    return Interrupted(f"stopped after round {len(run.history)} of {run.config.train.rounds}{hint}", run)


def _named_data(data: Any) -> Values:
    """The keys for data that are named and not handed over: `folder:PATH`, or such a name for each client."""
    if isinstance(data, str):
        return {"name": data}
    if isinstance(data, Mapping) and data and all(isinstance(own, str) for own in data.values()):
        return {"name": SITES, "sites": {str(name): own for name, own in data.items()}}
    return {}


def _given(data: Any, test: Any, class_names: Sequence[str] | None, true_labels: Any) -> Given | None:
    if data is not None:
        return given_data(data, test, class_names, true_labels)
    beside = {"test": test, "class_names": class_names, "true_labels": true_labels}
    for name, value in beside.items():
        if value is not None:
            raise UserError(f"{name}= is for data that are arrays; a named dataset has its own")
    return None


class Resolved(NamedTuple):
    """The configuration of a run, its name, and where it came from."""

    config: Config
    name: str
    origin: Values | None = None


def resolve(
    source: Source | None,
    changes: Values,
    given: Given | None = None,
    resumed: Path | None = None,
    seed: Any = None,
    device: str | None = None,
) -> Resolved:
    """What a run is made from; `resumed` is the folder of a run to resume."""
    changes = {section: dict(keys) for section, keys in changes.items()}
    seed = seed.item() if isinstance(seed, np.integer) else seed
    for key, value in (("seed", seed), ("device", device)):
        if value is not None:
            changes.setdefault("run", {})[key] = value
    if source is None and resumed is not None:
        RunFolder(resumed).check_is_run("; name a preset or file to start one")
        base, name = read_current(resumed / "config.toml"), resumed.resolve().name
        origin = origin_of(None, changes)
    elif isinstance(source, Config | Mapping):
        base = values_of(source, "source")
        name, origin = method_name(base), origin_of(None, changes)
    else:
        base, name = read_source(source := "demo" if source is None else source)
        origin = origin_of(source, changes)
    if given is not None:
        base, changes = _with_given(base, changes, given, own=isinstance(source, Mapping))
    return Resolved(load_config(merge(base, changes)), name, origin)


def _with_given(base: Values, changes: Values, given: Given, own: bool) -> tuple[Values, Values]:
    """The sections for a program's own data, without the preset's noise and clients, which are for other data; what the
    caller has written stays (`own`: the base, too)."""
    written = {**(base if own else {}), **changes}
    if given.sizes and "partition" in written:
        raise UserError("partition: data= already has clients; give one pair (images, labels) to have it dealt")
    if given.true_labels is not None and written.get("noise", {}).get("kind", "auto") not in ("auto", "unknown"):
        raise UserError(
            "true_labels= and noise exclude each other: noise makes wrong labels from true ones; leave one out"
        )
    base = {section: dict(keys) for section, keys in base.items()}
    if own:
        base.setdefault("data", {})["name"] = given.name
    changes = {**changes, "data": {**changes.get("data", {}), "name": given.name}}
    if given.sizes:
        base.pop("partition", None)
        changes["partition"] = {"kind": "given", "clients": len(given.sizes)}
    return base, changes
