import re

import pytest
from markupsafe import Markup
from readhtml import read

from foveal.see.page import Details, Page, Section, cards, figure, paragraph, render

EVIL = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>{{ 7 * 7 }}"


def test_sections_nest_and_have_headings():
    inner = Section("Inner", Markup("<p>body</p>"), intro="how to read", sections=[Section("Innermost")])
    text = render(Page("Title", "lede", [Section("One", sections=[inner], badge="new"), Section("Two", anchor="two")]))
    page = read(text)
    assert re.findall(r"<(h\d)[^>]*>(\w+)", text) == [
        ("h1", "Title"),
        ("h2", "One"),
        ("h3", "Inner"),
        ("h4", "Innermost"),
        ("h2", "Two"),
    ]
    assert "One new how" not in page.text
    assert "Inner how to read body" in page.text
    assert [address for address in page.addresses if address.startswith("#")] == ["#section-0", "#two"]
    assert re.findall(r'<section id="([^"]+)"', text) == ["section-0", "two"]


def test_one_section_needs_no_links():
    assert "nav" not in read(render(Page("t", "l", [Section("One")]))).tags


def test_runs_open_with_a_click_and_problems_are_told():
    runs = [
        Details("SOFT", {"Recipe": "a: 1\nb: <2>", "Environment": "{}"}, "MREF, seed 0"),
        Details("HARD", {}, badge="unfinished", problems=["result.json is damaged"]),
    ]
    page = read(render(Page("t", "l", [], runs, problems=["b/seed1 was left out"])))
    assert page.tags.count("details") == 2
    assert "SOFT MREF, seed 0 Recipe a: 1 b: <2> Environment {}" in page.text
    assert "HARD unfinished result.json is damaged" in page.text
    assert page.text.index("b/seed1 was left out") < page.text.index("Runs")


@pytest.mark.parametrize("role", ["", "note"])
def test_hostile_text_is_only_text(role):
    section = Section(EVIL, paragraph(EVIL, role) + cards([(EVIL, figure(Markup("x"), EVIL))]), EVIL, EVIL, EVIL)
    details = [Details(EVIL, {EVIL: EVIL}, EVIL, EVIL, [EVIL])]
    page = read(render(Page(EVIL, EVIL, [section, section], details, EVIL, [EVIL])))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.text.count("alert(1)") > 20
    assert "49" not in page.text  # no template inside a value


def test_the_file_needs_nothing_else(whole_page):
    text = render(whole_page)
    page = read(text)
    assert not re.search(r"https?://|//[a-z]", re.sub(r"base64,[^\"]+", "", text))
    assert not re.search(r"url\(|@import|@font-face|<script|<iframe|<object", text)
    assert page.addresses
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert len(text) < 1_000_000
