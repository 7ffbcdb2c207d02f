"""Make pictures of the status page. A loop on the embedded cloud meets a stock-out, a preemption and a full pool.

    python -m tests.support.screenshots [--minutes 6] [--out DIR]

The plots have a sample a minute, so they need some minutes. ``docs/images`` keeps two of the pictures.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome

from provisioner.lab.playground import Playground
from tests.support.browser import DESK, PHONE, chromium, colours, picture, resize
from tests.support.pictures import set_prices


def main() -> int:
    """Let the loop run until its pools have problems, and then take the pictures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=6.0)
    options.add_argument("--out", type=Path, default=Path("build/screenshots"))
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, Playground() as playground, chromium(Path(profile)) as driver:
        set_prices(playground.config / "provisioner.yaml")
        pods, mixed = play(playground, 60 * chosen.minutes)
        for name, path, size, scheme in (
            ("status", "/", DESK, "light"),
            ("status-dark", "/", DESK, "dark"),
            ("status-phone", "/", PHONE, "light"),
            ("status-phone-dark", "/", PHONE, "dark"),
            ("pool", "/pool/gke-main", DESK, "light"),
            ("template", "/template/Mixed", DESK, "light"),
            ("request", f"/request/{mixed}", DESK, "light"),
            ("request-phone", f"/request/{pods}", PHONE, "dark"),
            ("unknown", "/pool/nothing", DESK, "light"),
        ):
            take(driver, playground.url + path, size, scheme, chosen.out / f"{name}.png")
    return 0


def play(playground: Playground, seconds: float) -> tuple[str, str]:
    """Let a grid have problems: some machines wait for a pool without room, and two are preempted.

    Return the ids of a complete request and of a request that waits.
    """
    hf, began = playground.hf, time.monotonic()
    pods, instances = hf.request("GkePod", 24), hf.request("GceVm", 12)
    until(lambda: hf.status(pods)["status"] == "complete" == hf.status(instances)["status"])
    time.sleep(seconds / 4)
    first = hf.request("GkePod", 20)
    until(lambda: hf.status(first)["status"] == "complete")
    names = [machine["name"] for machine in hf.status(pods)["machines"]]
    playground.preempt(names[:2])
    hf.return_machines(names[5:12])
    time.sleep(seconds / 4)
    playground.faults({"mode": "stockout", "target": "symphony"}, {"mode": "stockout", "target": "hf-a"})
    mixed = hf.request("Mixed", 16)
    while time.monotonic() - began < seconds:
        hf.status(mixed)
        time.sleep(5)
    return pods, mixed


def until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until ``holds`` returns True. Raises TimeoutError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the grid did not come to what the pictures show")
        time.sleep(0.5)


def take(driver: Chrome, url: str, size: tuple[int, int], scheme: str, file: Path) -> None:
    """Save one picture."""
    resize(driver, size)
    colours(driver, scheme)
    driver.get(f"{url}?still")
    image = Image.open(io.BytesIO(picture(driver))).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(file, optimize=True)  # of few colours it is small enough to keep
    print(f"{file} {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
