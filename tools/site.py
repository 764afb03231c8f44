"""Build the documentation as a site: `make docs`, or `python tools/site.py [FOLDER]`.

The pages lie where they are read in the repository, beside what they describe. mkdocs wants them in one folder, so they
are copied, with their pictures and in the same layout, and built with every warning an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "LICENSE", "NOTICE", "docs/**/*", "experiments/*.md", "experiments/*/*.md", "experiments/*/*.png")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)\)")
MORE = ("benchmarks/README.md", "benchmarks/pictures/*.png")


def stage(target: Path) -> None:
    """Copy every page and picture to `target`; links to source files become their text."""
    shutil.rmtree(target, ignore_errors=True)
    files = {path for pattern in (*PAGES, *MORE) for path in ROOT.glob(pattern) if path.is_file()}
    for path in sorted(files):
        place = target / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(_LINK.sub(lambda m, p=path: _kept(m, p, files), path.read_text(encoding="utf-8")))
        else:
            shutil.copyfile(path, place)


def _kept(link: re.Match[str], page: Path, files: set[Path]) -> str:
    """A link as it is, or its text where it leads to a file of the repository that is no page."""
    target = (page.parent / link[2]).resolve()
    return link[1] if target.is_file() and target not in files else link[0]


def build(folder: Path) -> int:
    """Build the site in `folder`; 0 where every link leads somewhere."""
    stage(folder / "pages")
    config = folder / "mkdocs.yml"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config.write_text(text.replace(".site/pages", "pages").replace(".site/html", "html"), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr)
    return done.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".site", help="of the site; default: .site")
    target = parser.parse_args().folder
    status = build(target)
    print(f"{target / 'html' / 'index.html'}" if status == 0 else "the site was not built")
    sys.exit(status)
