"""What a scale's run produced, copied to where accepted results are committed."""

import shutil
from pathlib import Path

from lethe import paths
from lethe.errors import LetheError
from lethe.files import sha256_file, write_json


def accept(scale: str, root: Path = Path(".")) -> None:
    """Replace expected/{scale} by the summary, fits, tables (csv, md) and figures (csv, png, md) of this scale.

    manifest.json lists every file with its sha256. LetheError: nothing computed at this scale.
    """
    summary = root / paths.summary(scale)
    if not (summary / "manifest.json").exists():
        raise LetheError(f"{summary}/manifest.json: no such file (run the scale first)")
    out = root / paths.expected(scale)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(summary, out / "summary")
    for name in (paths.fits(scale), paths.claims(scale)):
        if (root / name).exists():
            shutil.copy(root / name, out)
    for kind, suffixes in (("paper_tables", (".csv", ".md")), ("figures", (".csv", ".png", ".md"))):
        for path in sorted((root / kind / scale).glob("*/*")):
            if path.suffix in suffixes:
                target = out / kind / path.parent.name / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    write_json(out / "manifest.json", {"files": {str(p.relative_to(out)): {"sha256": sha256_file(p)} for p in files}})
