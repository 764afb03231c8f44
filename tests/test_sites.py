"""Sites in a simulation: each is a client with its own name and data, and nothing is dealt or spoilt unasked."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import done, fednoil, refused
from PIL import Image
from test_data_pictures import encoded, listed, picture

import fednoil as package
from fednoil.audit import cases
from fednoil.config import load_config
from fednoil.config.loading import merge, to_toml
from fednoil.config.presets import preset
from fednoil.data import clients_of, load
from fednoil.data.sites import doubtful
from fednoil.errors import UserError
from fednoil.report.runs import load_run
from fednoil.seeds import Seed
from fednoil.setting import make_setting

SMALL = {"train.rounds": 2, "model.width": 2, "schedule.name": "constant", "schedule.epochs": 1}


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def folder(root: Path, classes: dict[str, int], each: int = 10, size: tuple[int, int] = (8, 8)) -> str:
    """Pictures whose values start at the class's own."""
    for name, first in classes.items():
        for number in range(each):
            picture(root / name / f"{number}.png", first + number, size=size)
    return f"folder:{root}"


@pytest.fixture
def two(tmp_path: Path) -> dict[str, str]:
    """A site with cats and dogs, and one with dogs and owls, of another size and kind of file."""
    north = folder(tmp_path / "a", {"cat": 0, "dog": 50})
    shard = tmp_path / "b" / "own.parquet"
    shard.parent.mkdir()
    labels = ["owl"] * 10 + ["dog"] * 10
    pq.write_table(pa.table({"image": [{"bytes": encoded(200 + n)} for n in range(20)], "label": labels}), shard)
    return {"nord": north, "süd 猫": f"parquet:{shard}"}


def config(sites: dict[str, str], **keys: Any) -> Any:
    return load_config({"data": {"name": "sites", "sites": sites, "size": 8, **keys}})


def test_each_site_is_a_client(two: dict[str, str]) -> None:
    made = config(two)
    assert (made.partition.kind, made.partition.clients, made.noise.kind) == ("given", 2, "unknown")
    setting = make_setting(made, None, Seed(0))
    assert setting.names == ("nord", "süd 猫")
    assert setting.dataset.class_names == ("cat", "dog", "owl")
    assert [sorted(set(given.tolist())) for given in setting.labels.given] == [[0, 1], [1, 2]]
    assert [len(part) for part in setting.parts] == [16, 16]  # a fifth of each class of each site is held out
    assert len(setting.dataset.test) == 8
    for part, low, high in zip(setting.parts, (0, 200), (60, 220), strict=True):
        values = setting.dataset.train.images[part][:, 0, 0, 0]
        assert ((values >= low) & (values < high)).all()


def test_from_the_command_line_to_audit_and_report(two: dict[str, str], tmp_path: Path) -> None:
    sets = [f"--set={key}={value}" for key, value in {**SMALL, "data.size": 8}.items()]
    sites = [word for name, data in two.items() for word in ("--site", f"{name}={data}")]
    out = done("run", "demo", *sites, *sets, "--out", tmp_path / "run")
    assert "2 clients (nord, süd 猫), 16 samples each" in out
    recorded = tomllib.loads((tmp_path / "run/config.toml").read_text(encoding="utf-8"))
    assert recorded["data"]["sites"] == two
    assert recorded["partition"]["kind"] == "given"
    assert json.loads((tmp_path / "run/roster.json").read_text())["clients"] == {"nord": 0, "süd 猫": 1}
    out = done("audit", tmp_path / "run", "--json")
    assert [client["client"] for client in json.loads(out)["clients"]] == ["nord", "süd 猫"]
    assert (
        "8 samples held out for testing are not audited; --data and --model audit all"
        in json.loads(out)["clients"][0]["notices"]
    )
    rows = pq.read_table(tmp_path / "run/audit/labels.parquet").to_pylist()
    assert {row["item"] for row in rows if row["client"] == "nord"} <= {
        f"{c}/{n}.png" for c in ("cat", "dog") for n in range(10)
    }
    out = done("audit", tmp_path / "run", "--client", "süd 猫", "--json")
    assert [client["client"] for client in json.loads(out)["clients"]] == ["süd 猫"]
    assert (tmp_path / "run/audit-client-süd 猫/audit.html").is_file()
    out = done("audit", tmp_path / "run", "--client", 0, "--json")
    assert [client["client"] for client in json.loads(out)["clients"]] == ["nord"]
    assert "has the clients nord, süd 猫, or 0 to 1" in refused("audit", tmp_path / "run", "--client", "west")
    assert "client nord has 16 samples to deal" in refused("audit", tmp_path / "run", "--folds", 17)
    run = load_run(tmp_path / "run")
    assert run.clients.names == ["nord", "süd 猫"]
    assert run.place.title.startswith("own data 2 sites")
    done("run", "--resume", "--out", tmp_path / "run", "--quiet")


def test_decisions_about_one_site_go_to_its_data(two: dict[str, str], tmp_path: Path) -> None:
    lines = ["client,item,index,given,decision,label", "nord,cat/3.png,3,cat,change,dog", "süd 猫,4,20,owl,change,dog"]
    (tmp_path / "d.csv").write_text("\n".join(lines), encoding="utf-8")
    for site, data in two.items():
        out = tmp_path / f"new-{site}"
        arguments = ("--data", data, "--decisions", tmp_path / "d.csv", "--site", site, "--out", out)
        printed = done("relabel", *arguments)
        assert "1 changed" in printed
    assert (tmp_path / "new-nord/dog/3-2.png").is_file()
    assert pq.read_table(tmp_path / "new-süd 猫").column("label").to_pylist()[4] == "dog"
    arguments = ("--data", two["nord"], "--decisions", "d.csv", "--site", "west", "--out", "x")
    assert "--site west: d.csv has decisions about nord, süd 猫 alone" in refused("relabel", *arguments)


def test_a_run_s_manifest_is_relabelled(two: dict[str, str], tmp_path: Path) -> None:
    package.run("demo", data=two, set=SMALL | {"data.size": 8}, out=tmp_path / "run", progress=False)
    found = cases.of_run(tmp_path / "run", None, None, package.devices.pick_device("cpu"))
    second = found.clients[1]
    given = found.class_names[int(second.given[0])]
    line = f"{second.client},{second.items[0]},{second.index[0]},{given},change,cat"
    (tmp_path / "d.csv").write_text(f"client,item,index,given,decision,label\n{line}\n", encoding="utf-8")
    arguments = ("--data", f"manifest:{tmp_path / 'run'}", "--decisions", "d.csv", "--out", "new.parquet")
    printed = done("relabel", *arguments)
    assert "1 changed" in printed
    again = {"data.size": 8, "noise.kind": "manifest", "noise.file": "new.parquet"}
    run = package.run("demo", data=two, set=SMALL | again, progress=False)
    assert run.finished
    assert [client["client"] for client in run.audit().summary["clients"]] == list(two)


def test_a_site_too_small_to_hold_images_out_keeps_them_all(tmp_path: Path) -> None:
    first = folder(tmp_path / "a/train", {"x": 0, "y": 50})
    folder(tmp_path / "a/test", {"x": 100, "y": 150}, 3)
    second = folder(tmp_path / "b", {"x": 200, "y": 230}, 2)
    data = load(config({"a": first.removesuffix("/train"), "b": second}).data)
    assert len(data.test) == 6
    assert data.about.owners is not None
    assert data.about.owners.sizes == (20, 4)
    notice = "no test images at 1 of 2 sites, and too few to hold some out: no class has three there"
    assert data.about.notices[-1] == notice


def test_names_that_may_be_one_or_none_are_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two classes and two sites that differ only in case or spaces, and a class that says that there is no label."""
    rows = "".join(
        f"{k},{site},{label}\n" for k, site in enumerate(("Nord", "nord")) for label in ("ill", "Ill", "N/A")
    )
    (tmp_path / "t.csv").write_text("a,Client,label\n" + 5 * rows)
    wanted = [
        "column 'Client' says which client each row belongs to, as a column 'site' does; if it means something else, "
        "rename it, or leave it out (:drop=Client)",
        "classes 'Ill' and 'ill' differ only in case or spaces; if they are one, give it one name",
        "class 'N/A' reads like a missing label; if it is one, leave its samples out",
        "sites 'Nord' and 'nord' differ only in case or spaces; if they are one, give it one name",
    ]
    _, out, _ = fednoil("data", f"table:{tmp_path / 't.csv'}", "--json")
    assert [line for line in json.loads(out)["notices"] if not line.startswith("no test rows")] == wanted
    package.run("demo", data=f"table:{tmp_path / 't.csv'}", set={"train.rounds": 1, "model.name": "mlp"}, progress=True)
    assert [line for line in capsys.readouterr().out.splitlines() if line in wanted] == wanted


def test_labels_of_two_kinds_are_pointed_out() -> None:
    mixed, missing = doubtful(("-1", "1.0", "nan", "yes"), ())
    assert mixed == "labels are numbers (-1, 1.0) and text (nan, yes); correct those that are mistakes"
    assert missing.startswith("class 'nan' reads like a missing label")


def test_names_that_are_meant() -> None:
    assert doubtful(("a", "A", "é", "É"), ("none", "nord", "1")) == []
    assert doubtful(("0", "1", "2"), ()) == doubtful(("b1", "b2"), ()) == []
    assert doubtful(("spruce", "sprucy", "class1", "class2", "man", "men"), (), (50, 50, 99, 3, 99, 3)) == []
    assert doubtful(("malignant", "malginant", "benign"), (), (60, 3, 9)) == [
        "class 'malginant' has 3 samples and is spelled almost like 'malignant'; if they are one, give it one name"
    ]
    slips = ("bening", "benig", "bemign", "benignn")  # of benign
    assert [len(doubtful(("benign", slip), (), (90, 3))) for slip in slips] == [1, 1, 1, 1]
    others = (
        ("atypical", "typical"),
        ("hyperthyroid", "hypothyroid"),
        ("grade III", "grade II"),
        ("benign", "benign x"),
    )
    assert [doubtful(pair, (), (3, 90)) for pair in others] == [[], [], [], []]
    (line,) = doubtful(("ab", "Ab", "AB", " ab", "cd", "CD"), ())
    assert line.startswith("classes 'ab' and 'Ab', 'ab' and 'AB', 'ab' and ' ab' and 1 more differ only")


def test_from_python_the_names_of_data_are_as_good_as_arrays(two: dict[str, str]) -> None:
    run = package.run("demo", data=two, set=SMALL | {"data.size": 8}, progress=False)
    assert run.config.data.name == "sites"
    assert [client["client"] for client in run.audit().summary["clients"]] == ["nord", "süd 猫"]
    one = package.run("demo", data=two["nord"], set=SMALL | {"partition.clients": 2}, progress=False)
    assert one.config.data.name == two["nord"]
    with pytest.raises(UserError, match="= 'mini' and data= both say where the data are; leave one of them out"):
        package.run("demo", data=two, set={"data.name": "mini"})
    with pytest.raises(UserError, match="= 'mini' and data= both say where the data are; leave one of them out"):
        package.run({"data.name": "mini"}, data=two)
    with pytest.raises(UserError, match="test= is for data that are arrays"):
        package.run("demo", data=two, test=(np.zeros((2, 8, 8)), [0, 1]))


def test_what_is_asked_for_is_done(two: dict[str, str]) -> None:
    """Clients of another number, or noise, on the data of all sites."""
    base, changes = preset("demo"), {"data": {"name": "sites", "sites": two, "size": 8}}
    assert "partition" not in merge(base, changes)
    dealt = load_config(merge(base, changes | {"partition": {"clients": 4}}))
    setting = make_setting(dealt, None, Seed(0))
    assert (setting.num_clients, setting.names) == (4, ())
    noisy = load_config(merge(base, changes | {"noise": {"kind": "symmetric", "ratios": [0.5]}}))
    setting = make_setting(noisy, None, Seed(0))
    assert setting.names == ("nord", "süd 猫")
    assert setting.truth.known


def test_a_configuration_is_written_and_read(two: dict[str, str]) -> None:
    made = config({**two, 'a "b" = c': "folder:x"})
    assert load_config(tomllib.loads(to_toml(made))) == made


def test_a_column_says_whose_each_image_is(tmp_path: Path) -> None:
    rows = [("path", "label", "site")]
    rows += [(f"{n}.png", "ab"[n % 2], "west" if n % 3 else "öst") for n in range(60)]
    made = load_config({"data": {"name": listed(tmp_path, rows)}})
    assert (made.partition.kind, made.partition.clients) == ("given", 2)
    setting = make_setting(made, None, Seed(0))
    assert setting.names == ("öst", "west")
    rest = setting.dataset.train.images[setting.parts[0]][:, 0, 0, 0] % 3
    assert set(rest.tolist()) == {0}
    assert setting.dataset.train.images[setting.parts[1]][:, 0, 0, 0].all()
    table = {"image": [{"bytes": encoded(n)} for n in range(40)], "label": [0, 1] * 20, "site": [7, 7, 8, 8] * 10}
    pq.write_table(pa.table(table), tmp_path / "own.parquet")
    made = load_config({"data": {"name": f"parquet:{tmp_path / 'own.parquet'}"}})
    assert clients_of(made.data) == ("7", "8")
    owners = load(made.data).about.owners
    assert owners is not None
    assert owners.sizes == (16, 16)
    assert load(made.data).about.owners.names == ("7", "8")  # type: ignore[union-attr]


def test_test_images_of_one_site_are_used_and_the_other_s_held_out(tmp_path: Path) -> None:
    first = folder(tmp_path / "a/train", {"x": 0, "y": 50})
    folder(tmp_path / "a/test", {"x": 100, "y": 150}, 3)
    second = folder(tmp_path / "b", {"x": 200, "y": 230})
    data = load(config({"a": first.removesuffix("/train"), "b": second}).data)
    assert len(data.test) == 6 + 4
    assert data.about.owners is not None
    assert data.about.owners.sizes == (20, 16)
    assert data.about.notices[-1].startswith("no test images at 1 of 2 sites: 4 images")


@pytest.mark.parametrize("tested", [False, True])
@pytest.mark.parametrize(
    ("labels", "names", "classes"),
    [
        ([0, 1], ["cat", "dog"], ("cat", "dog")),
        (["dog", "cat"], None, ("cat", "dog")),
        ([0, 1], None, ("0", "1")),
        ([1, 2], None, ("1", "2")),
    ],
)
def test_arrays_are_a_site(labels: list[Any], names: list[str] | None, classes: tuple[str, ...], tested: bool) -> None:
    """Pixels say what each image's class is, whichever way its label does."""
    pixels = np.arange(20).repeat(64).reshape(20, 8, 8).astype(np.uint8)
    arrays: dict[str, Any] = {"x_train": pixels, "y_train": np.array(labels * 10)}
    if tested:
        arrays |= {"x_test": pixels[:7] + 100, "y_test": np.array(labels * 4)[:7]}
    if names is not None:
        arrays["class_names"] = np.array(names)
    for site in "ab":
        np.savez(f"{site}.npz", **arrays)
    data = load(config({"a": "npz:a.npz", "b": "npz:b.npz"}).data)
    assert data.class_names == classes
    assert (len(data.train), len(data.test)) == ((40, 14) if tested else (32, 8))
    first = str(labels[0]) if names is None else names[0]
    for split in (data.train, data.test):
        even = split.images[:, 0, 0, 0] % 2 == 0
        assert np.array_equal(split.labels == classes.index(first), even)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"a": "folder:none"}, r"site 'a': folder:none is not a folder"),
        ({"a": "photos"}, r"site 'a': data 'photos' must be folder:PATH"),
        ({"a": "cifar10"}, r"site 'a': data 'cifar10' must be"),
        ({"a": "folder:one", "b": "folder:Case"}, r"site 'b' has a class 'Cat' and site 'a' 'cat'; if they are one"),
        (
            {"a": "folder:one", "b": "npz:zero.npz"},
            r"site 'b' numbers its classes and site 'a' names them \(cat, dog\)",
        ),
        ({"a": "npz:zero.npz", "b": "npz:from1.npz"}, r"site 'b' numbers its classes 1 to 2, and site 'a' from 0"),
        (
            {"a": "folder:one", "b": "folder:bad"},
            r"2 pictures can't be used: b: cat/x.txt is not .*, b: cat/0.png can't",
        ),
        ({"a": "folder:one", "b": "csv:list.csv"}, r"site 'b': csv:list.csv has sites of its own"),
    ],
)
def test_sites_that_do_not_fit(tmp_path: Path, sites: dict[str, str], message: str) -> None:
    folder(tmp_path / "one", {"cat": 0, "dog": 50})
    folder(tmp_path / "Case", {"Cat": 0, "dog": 50})
    folder(tmp_path / "bad", {"cat": 0})
    (tmp_path / "bad/cat/0.png").write_bytes(b"x")
    (tmp_path / "bad/cat/x.txt").write_bytes(b"x")
    images = np.zeros((10, 8, 8), np.uint8)
    np.savez(tmp_path / "zero.npz", x_train=images, y_train=np.arange(10) % 2)
    np.savez(tmp_path / "from1.npz", x_train=images, y_train=np.arange(10) % 2 + 1)
    listed(tmp_path, [("path", "label", "site"), ("1.png", "cat", "x"), ("2.png", "dog", "y")])
    with pytest.raises(UserError, match=message):
        load(config(sites, size=None).data)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--site", "nord"], "--site nord: write NAME=folder:PATH or NAME=csv:FILE"),
        (["--site", "=folder:x"], "--site =folder:x: write NAME="),
        (["--site", "a=folder:x", "--site", "a=folder:y"], "'a' has data already; each site needs its own name"),
        (["--site", "a=folder:none"], "site 'a': folder:none is not a folder"),
        (["--set", "data.name=sites"], "or --site NAME=DATA to simulate them"),
        (["--set", "partition.kind=given"], "partition.kind = 'given' needs data that name the client of each sample"),
        (["--set", "data.name=sites", "--set", 'data.sites={"\\n"="folder:x"}'], "is not a name for a site"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str) -> None:
    assert said in refused("run", "demo", *arguments)
    assert not Path("runs").exists()


def test_a_folder_of_sites_is_pointed_to_its_sites() -> None:
    for site in ("nord", "my süd"):
        folder(Path("sites") / site, {"cat": 0, "dog": 50}, 2)
    message = refused("data", "folder:sites")
    assert "give --site 'my süd=folder:sites/my süd' --site nord=folder:sites/nord instead" in message


def test_sites_of_different_sizes_get_one(tmp_path: Path) -> None:
    first = folder(tmp_path / "a", {"x": 0, "y": 50}, size=(40, 40))
    Image.new("RGB", (90, 60), "red").save(tmp_path / "a/x/colour.png")
    second = folder(tmp_path / "b", {"x": 0, "y": 50}, size=(30, 20))
    data = load(config({"a": first, "b": second}, size=None).data)
    assert data.image_shape == (3, 40, 40)


def test_a_site_that_has_other_classes_than_all_others_is_pointed_out(tmp_path: Path) -> None:
    for name, classes in (("a", "yn"), ("b", "nm"), ("c", "01")):
        rows = "".join(f"{k},{classes[k % 2]}\n" for k in range(10))
        (tmp_path / f"{name}.csv").write_text("x,label\n" + rows.replace("0\n", "no\n").replace("1\n", "yes\n"))
    run = {name: f"table:{tmp_path / name}.csv" for name in "abc"}
    found = load(load_config({"data": {"name": "sites", "sites": run}}).data).about.notices
    assert [line for line in found if "at no other site" in line] == [
        "c: its classes (no, yes) are at no other site (m, n, y); if they are the same, name them alike"
    ]


def test_common_data_test_the_model_of_all_sites(tmp_path: Path) -> None:
    """Columns and classes are matched by name; nothing is held out then, and accuracy is accuracy."""
    for name, shift in (("a", 0), ("b", 3), ("clean", 1)):
        rows = "".join(f"{20 * (k % 2) + k % 5 + shift},{'rb'[k % 2]},{'ny'[k % 2]}\n" for k in range(20))
        (tmp_path / f"{name}.csv").write_text("x,colour,label\n" + rows)
    (tmp_path / "clean.csv").write_text("label,y,colour,x\ny,1,b,21\nn,1,r,2\ny,1,g,25\n")
    (tmp_path / "s.csv").write_text("label,colour,x,split\ny,b,21,test\nn,r,2,train\n")
    sites = {name: f"table:{tmp_path / name}.csv" for name in "ab"}
    keys = {"model.name": "linear", "train.rounds": 2}
    split = load(load_config({"data": {"name": "sites", "sites": {**sites, "test": f"table:{tmp_path}/s.csv"}}}).data)
    assert split.test.labels.tolist() == [1]
    run = package.run("demo", data=sites, test=f"table:{tmp_path}/clean.csv:drop=y", set=keys, progress=False)
    dataset = run._played()[0].setting.dataset
    assert (len(dataset.train), len(dataset.test), dataset.about.held_out) == (40, 3, False)
    assert dataset.test.labels.tolist() == [1, 0, 1]
    assert dataset.about.columns == ("x", "colour=b", "colour=r")
    assert dataset.test.images[2].tolist()[1:] == [0, 0]  # no site has green ones
    assert "measure" not in run.summary

    def fails(test: str) -> str:
        with pytest.raises(UserError) as failed:
            load(load_config({"data": {"name": "sites", "sites": {**sites, "test": test}}}).data)
        return str(failed.value)

    with pytest.raises(UserError, match="data has a client 'test', whose data test the model, and test= is given"):
        package.run("demo", data={**sites, "test": sites["a"]}, test=sites["b"], set=keys)
    with pytest.raises(UserError, match="call 'Test' 'test' if its data are to test the model, or otherwise if not"):
        load_config({"data": {"name": "sites", "sites": {**sites, "Test": sites["a"]}}})
    with pytest.raises(UserError, match="site 'test' only tests a model; name a site to train it on, too"):
        load(load_config({"data": {"name": "sites", "sites": {"test": sites["a"]}}}).data)
    assert fails("clean.csv").startswith("site 'test': data 'clean.csv' must be folder:PATH, ")
    (tmp_path / "clean.csv").write_text("label,colour,x\nz,b,21\n")
    assert fails(f"table:{tmp_path}/clean.csv").endswith("has the class 'z', which no other site has; they have n, y")
    (tmp_path / "clean.csv").write_text("label,colour,x\n1,b,21\n0,r,1\n")
    assert "has classes with numbers, and the other sites with names; use the same" in fails(
        f"table:{tmp_path}/clean.csv"
    )
    (tmp_path / "a.csv").write_text("x,colour,label,split\n1,r,n,train\n21,b,y,train\n3,r,n,test\n")
    assert "site 'a' has test samples of its own, beside site 'test'" in fails(f"table:{tmp_path}/b.csv")
