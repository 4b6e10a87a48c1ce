"""Charts and tables of benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import charts

HEADER = (
    "form,entities,width,heads,batch,dtype,step_ms,device_ms,peak_mib,"
    "ratio_to_attention,difference,hardware,torch,revision"
)


def test_center_mass_stands_beside_attention(tmp_path: Path) -> None:
    shapes = ((1024, 32, 1, 0.8), (1024, 32, 4, 1.254), (1024, 64, 1, 1.1), (256, 32, 1, 2))
    rows = [
        f"{form},{count},{width},{heads},8,bfloat16,{ratio},1.0,2.0,{ratio},,some GPU,2.11,until abc"
        for count, width, heads, ratio in shapes
        for form in ("attention", "light")
    ]
    (tmp_path / "bench-center-mass.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    lines = charts.bench("center-mass", tmp_path).splitlines()
    assert lines[0].startswith("some GPU, torch 2.11, bfloat16; revision abc or earlier.")
    assert lines[0].endswith("over 1, 4 heads.")
    table = lines.index("| N | d = 32 | d = 64 |")
    assert lines[table + 2 : table + 4] == ["| 256 | 2.00× |  |", "| 1,024 | 0.80–1.25× | 1.10× |"]
    assert '??? note "All figures"' in lines
    assert "    batch 8, bfloat16, 1.0, 2.0, some GPU, 2.11; revision abc or earlier." in lines
    assert "    | light | 1024 | 32 | 4 | 1.254 | 1.254 |" in lines


def test_labels_of_bars_end_within_the_chart() -> None:
    rows = [
        {"what": "a step", "form": form, "ratio": ratio}
        for form, ratio in (("fused", "1.2"), ("aw_cbam_cifar_resnet20", "9.38"))
    ]
    chart = charts.bars("step", rows)
    right = float(re.search(r'viewBox="0 0 (\d+)', chart)[1])
    labels = re.findall(r'<text x="([\d.]+)" y="\d+">([^<]+)</text>', chart)
    assert [label for _, label in labels] == ["1.20× fused", "9.38× aw_cbam_cifar_resnet20"]
    assert all(float(x) + 5.5 * len(label) < right for x, label in labels)


def test_rows_of_benchmarks_say_which_revision_measured_them() -> None:
    """If this fails, write them with ``foveal.bench.write_rows``; docs/provenance.py completes rows of before."""
    for path in charts.RESULTS.glob("bench-*.csv"):
        assert all(row["revision"] for row in charts.read(path)), path.name
