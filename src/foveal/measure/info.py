"""What a metric is called: :mod:`foveal.metric_info`, which needs no PyTorch."""

from foveal.metric_info import Direction, MetricInfo, metric_info, register_metric

__all__ = ["Direction", "MetricInfo", "metric_info", "register_metric"]
