"""A page in a real browser, as wide as a desk and as narrow as a phone."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from foveal.see.page import render

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to look at the page as a reader would"),
]

# The window of headless chromium does not get as narrow as a phone, a frame inside it does.
FRAME = """<!doctype html><body style="margin:0"><iframe style="border:0;width:{width}px;height:3000px" srcdoc="{page}"
onload="let d = this.contentDocument, e = d.documentElement, wide = [];
for (let x of d.querySelectorAll('body *')) if (x.getBoundingClientRect().right > e.clientWidth + 1
    && !x.closest('.scroll, pre')) wide.push(x.className || x.tagName);
let broken = [...d.images].filter(i => !i.naturalWidth).length;
let names = [...d.querySelectorAll('.who, .answer, figcaption, th')];
let cut = names.filter(x => x.scrollWidth > x.clientWidth + 1).length;
let rings = [...d.querySelectorAll('.ring')].map(r => Math.round(r.getBoundingClientRect().width));
document.body.dataset.seen = JSON.stringify({{client: e.clientWidth, scroll: e.scrollWidth, wide, broken, cut, rings,
    images: d.images.length, text: d.body.innerText, dark: getComputedStyle(e).backgroundColor}})"></iframe>"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    home = tmp_path_factory.mktemp("browser")

    def run(page, *flags):
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={home}", *flags, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    return run


@pytest.fixture
def page(tmp_path, whole_page):
    path = tmp_path / "page.html"
    path.write_text(render(whole_page), encoding="utf-8")
    return path


def framed(page, width):
    frame = page.with_name(f"frame{width}.html")
    frame.write_text(FRAME.format(width=width, page=html.escape(page.read_text(encoding="utf-8"))), encoding="utf-8")
    return frame


def look(browse, page, width, *flags):
    dom = browse(framed(page, width), "--dump-dom", *flags)
    return json.loads(html.unescape(re.search(r'data-seen="([^"]+)"', dom).group(1)))


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_reads(browse, page, width):
    seen = look(browse, page, width)
    assert seen["client"] == width
    assert seen["scroll"] <= width
    assert seen["wide"] == []
    assert seen["cut"] == 0  # no name is cut
    samples = 6 * (1 + 3 * 2 + 2 * 5 + 1 + 12)  # input, three models with a gate, two with four, one with many
    assert (seen["images"], seen["broken"]) == (samples + 2 * (1 + 2 * 5), 0)
    assert len(seen["rings"]) == 6
    assert all(200 < size <= 360 for size in seen["rings"])
    for words in ("Where seven models look", "What colour is the", "HAttNet-CTX", "unfinished", "Accuracy by scale"):
        assert words in seen["text"]
    for words in ("12 of 25 gates shown", "mobilenetv3_small_100_without_attention", "American Staffordshire terrier"):
        assert words in seen["text"]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_screenshot_shows_paper_and_pictures(browse, page, width):
    shot = page.with_name("shot.png")
    browse(framed(page, width), f"--window-size={max(width, 500)},3000", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("RGB"))[:, :width].reshape(-1, 3)
    paper = (pixels == (0xFB, 0xFA, 0xF7)).all(1).mean()
    black = (pixels < 12).all(1).mean()
    assert 0.25 < paper < 0.9  # calm, and not empty
    assert black > 0.05  # the pictures are there


def test_dark_readers_get_a_dark_page(browse, page):
    seen = look(browse, page, 390, "--blink-settings=preferredColorScheme=0")
    assert seen["dark"] == "rgb(22, 21, 19)"
