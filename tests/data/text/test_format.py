"""New texts are read like those of the corpus."""

from small_files import write_newsgroups

from foveal.data.text.documents import TextOptions, text_format


def test_new_texts_are_read_like_those_of_the_corpus(tmp_path):
    write_newsgroups(tmp_path)
    whole, bare = TextOptions(), TextOptions(strip="headers footers quotes")
    raw = (tmp_path / "20news-bydate-train/rec.autos/1").read_bytes()
    for options in (whole, bare):
        text, _ = next(text_format("20news").corpus(tmp_path, options).splits["train"]())
        assert "café" in text
        assert text_format("20news").text(raw, options) == text
        assert text_format("20news").text(raw.decode("latin-1"), options) == text
    assert text_format("20news").text("caf\xe9".encode(), TextOptions(encoding="utf-8")) == "café"
    assert text_format("20news").text("The moon.", bare) == "The moon."  # no message, no headers
    for name in ("imdb", "yahoo-answers", "ag-news"):
        assert text_format(name).text("Yes.<br />caf\xe9\\nNo.".encode(), whole) == "Yes.\ncafé\nNo."
    assert (
        text_format("of my own").text("a<br />b", whole) == text_format("textcsv").text("a<br />b", whole) == "a<br />b"
    )
