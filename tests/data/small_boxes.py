"""Small datasets with boxes in their official forms."""

import json

from PIL import Image
from small_files import write

from foveal.data import dataset
from foveal.data.images.boxed import BoxOptions

VOC_OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax>"
    "<ymax>{}</ymax></bndbox></object>"
)


def build(name, root=None, **options):
    """A source of images with boxes."""
    return dataset(name).build(BoxOptions(**{"workers": 0} | options), root)


def save(path, size=(40, 30), colour=(90, 120, 60), **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **more)
    return path


def write_json(path, content):
    write(path, json.dumps(content))
    return path


def voc_annotation(path, objects, size=(40, 30)):
    """Objects are (name, difficult, xmin, ymin, xmax, ymax), counted from 1."""
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    write(path, f"<annotation>{sides}{''.join(VOC_OBJECT.format(*o) for o in objects)}</annotation>")


def write_voc(root, images, year="2012", lists=("train", "val")):
    """Images by list: name -> objects."""
    folder = root / f"VOCdevkit/VOC{year}"
    for split in lists:
        write(folder / f"ImageSets/Main/{split}.txt", "".join(f"{name}\n" for name in images[split]))
        for name, objects in images[split].items():
            save(folder / f"JPEGImages/{name}.jpg")
            voc_annotation(folder / f"Annotations/{name}.xml", objects)
    return folder


def coco(images, annotations, categories=((3, "cat"), (7, "dog"))):
    """An instances file: images are (id, name, width, height), annotations (image, category, bbox, crowd)."""
    return {
        "images": [{"id": i, "file_name": name, "width": w, "height": h} for i, name, w, h in images],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": box, "iscrowd": crowd, "area": 1.0}
            for n, (i, c, box, crowd) in enumerate(annotations)
        ],
        "categories": [{"id": i, "name": name} for i, name in categories],
    }


def write_cocofolder(root, sizes=((40, 30), (30, 40), (36, 36), (44, 28)), splits=("train", "val", "test")):
    """Images of several sizes with one or two boxes each, in COCO's form."""
    for k, split in enumerate(splits):
        images = [(10 * k + n, f"{n}.png", *size) for n, size in enumerate(sizes)]
        boxes = [(10 * k + n, 3 + 4 * (n % 2), [4 + n, 5, 12, 14], 0) for n in range(len(sizes))]
        boxes += [(10 * k, 7, [20, 8, 15, 16], 0)]
        write_json(root / f"cocofolder/annotations/instances_{split}.json", coco(images, boxes))
        for n, size in enumerate(sizes):
            save(root / f"cocofolder/{split}/{n}.png", size, (60 * n, 200 - 40 * n, 90))
    return root
