"""A page of sections as one HTML file, and the parts that sections are made of."""

from foveal.see.page.cards import (
    cards,
    charts,
    class_map_cards,
    colour_key,
    document_cards,
    figure,
    figure_cards,
    sample_cards,
    training_charts,
)
from foveal.see.page.page import Details, Page, Section, paragraph, render
from foveal.see.page.picture import picture
from foveal.see.page.sections import class_maps_section, curves_section, documents_section, samples_section
from foveal.see.page.table import ModelRow, Value, best, metric_table, parts_table, table

__all__ = [
    "Details",
    "ModelRow",
    "Page",
    "Section",
    "Value",
    "best",
    "cards",
    "charts",
    "class_map_cards",
    "class_maps_section",
    "colour_key",
    "curves_section",
    "document_cards",
    "documents_section",
    "figure",
    "figure_cards",
    "metric_table",
    "paragraph",
    "parts_table",
    "picture",
    "render",
    "sample_cards",
    "samples_section",
    "table",
    "training_charts",
]
