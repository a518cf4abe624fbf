"""Take the pictures of envkit's pages that the documentation shows, in a real browser, light and dark.

python scripts/pictures.py    where one environment of PyTorch is installed ($ENVKIT_PREFIX), with chromium on PATH

Writes docs/pictures/*.png, of pages that real runs have written here and now.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVKIT = Path(sys.executable).with_name("envkit")
TRAIN = ["--example", "pytorch-mnist", "--", "--epochs", "1"]
PAGES = {  # page: the command that writes it, its status, and the height of what is shown
    "verify": (["verify", "--bench", "--html", "verify.html"], 0, 1500),
    "failed": (["verify", "--require", "nccl", "--html", "failed.html"], 1, 900),
    "timeline": (["run", "-n", "2", "--timeline", "out.json", "--html", "timeline.html", *TRAIN], 0, 1100),
    "report": (["report", "--log", "slurm-4711.out", "-o", "report.html"], 0, 1000),
}
LOG = "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\n"
SCHEMES = {"light": 1, "dark": 0}  # as Chromium counts them
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
WIDTH = 1100


def browser() -> str:
    """Return Chromium's path. Raises RuntimeError where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise RuntimeError("The pictures need chromium on PATH.")
    return found


def main() -> None:
    """Write each page, and take its picture twice. Raises RuntimeError where a command ends as it should not."""
    pictures, chromium = ROOT / "docs" / "pictures", browser()
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "slurm-4711.out").write_text(LOG)
        for page, (words, expected, height) in PAGES.items():
            status = subprocess.run([ENVKIT, *words], cwd=folder, stdout=subprocess.DEVNULL, check=False).returncode
            if status != expected:
                raise RuntimeError(f"'envkit {' '.join(words)}' ended with {status}.")
            for scheme, number in SCHEMES.items():
                picture = pictures / f"{page}-{scheme}.png"
                argv = [chromium, *OPTIONS, f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{height}"]
                argv += [f"--blink-settings=preferredColorScheme={number}", f"--screenshot={picture}"]
                subprocess.run(
                    [*argv, (folder / f"{page}.html").as_uri()], capture_output=True, timeout=120, check=True
                )


if __name__ == "__main__":
    main()
