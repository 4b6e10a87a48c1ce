"""Coloured shapes in place of Visual Genome."""

from foveal.data.embedded.shapes import CANVAS, COLOURS, Shapes, shapes_of


def test_embedded_label_mask_and_picture_belong_together():
    data = Shapes("", "train", 64, sizes=(40, 10, 10))
    for n in range(len(data)):
        item = data[n]
        words = [data.answers[k] for k in item["label"].nonzero().flatten().tolist()]
        assert len(words) == 2
        rows, columns = item["mask"].nonzero(as_tuple=True)
        middle = item["image"][:, rows.float().mean().round().long(), columns.float().mean().round().long()]
        assert tuple(middle.tolist()) == COLOURS[words[0]]
        share = float(item["mask"].float().mean())
        assert words[1] == ("large" if share > 0.07 else "small")


def test_embedded_shapes_do_not_overlap_and_differ():
    for image in range(200):
        shapes = shapes_of(image)
        assert 2 <= len({shape.kind for shape in shapes}) == len(shapes) <= 4
        boxes = [shape.box for shape in shapes]
        for i, (x, y, side, _) in enumerate(boxes):
            assert min(x, y) >= 0
            assert max(x, y) + side <= CANVAS
            for u, v, other, _ in boxes[:i]:
                assert x + side <= u or u + other <= x or y + side <= v or v + other <= y
