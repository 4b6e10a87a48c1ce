"""What a model costs, as metrics beside its scores; a task measures them."""

from __future__ import annotations

from foveal.measure.info import MetricInfo, register_metric

MFLOPS = register_metric(
    MetricInfo(
        "mflops",
        "Arithmetic",
        unit="MFLOP",
        better="lower",
        about="Arithmetic is the forward pass of one training crop; a multiplication and an addition count two.",
    )
)
PEAK_MEMORY = register_metric(
    MetricInfo(
        "peak_memory",
        "Memory",
        unit="MiB",
        better="lower",
        about="Memory is the peak of the GPU in training steps, with the images that it holds.",
    )
)
