"""A small Visual Genome in the official format, for the tests of its loader and of runs on it."""

import json

from PIL import Image, ImageDraw

COLOURS = {"red": (230, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 230)}
IMAGES, WIDTH, HEIGHT = 30, 60, 40


def scene(i):
    """Objects of image ``i``: a coloured ball left, a coloured box right, and what the loader must put up with."""
    colour, other = list(COLOURS)[i % 3], list(COLOURS)[((i - 1) // 3) % 3]
    objects = [
        {"object_id": 10 * i, "names": ["ball"], "attributes": [colour, "round"], "x": 5, "y": 10, "w": 20, "h": 20},
        {
            "object_id": 10 * i + 1,
            "names": [" Box "],
            "attributes": [other.upper() + " "],
            "x": 35,
            "y": 5,
            "w": 20,
            "h": 30,
        },
        {
            "object_id": 10 * i + 2,
            "names": ["sky"],
            "x": 0,
            "y": 0,
            "w": 60,
            "h": 5,
        },  # no attributes, as in the real file
    ]
    if i % 5 == 0:  # a second ball, to be merged with the first
        objects.append(
            {"object_id": 10 * i + 3, "names": ["ball"], "attributes": ["big"], "x": 55, "y": 30, "w": 20, "h": 20}
        )
    if i == 7:  # too rare an attribute and too rare an object
        objects[0]["attributes"].append("striped")
        objects.append(
            {"object_id": 10 * i + 4, "names": ["hat"], "attributes": ["red"], "x": 1, "y": 1, "w": 3, "h": 3}
        )
    return [{"synsets": [], **thing} for thing in objects]


def write(root):
    """A small Visual Genome in the official format."""
    for folder in ("VG_100K", "VG_100K_2"):
        (root / folder).mkdir(parents=True)
    attributes, image_data = [], []
    for i in range(1, IMAGES + 1):
        picture = Image.new("RGB", (WIDTH, HEIGHT), (128, 128, 128))
        for thing in scene(i):
            colour = next(
                (COLOURS[c] for a in thing.get("attributes", []) if (c := a.strip().lower()) in COLOURS), None
            )
            box = (thing["x"], thing["y"], thing["x"] + thing["w"] - 1, thing["y"] + thing["h"] - 1)
            ImageDraw.Draw(picture).rectangle(box, fill=colour)
        folder = "VG_100K" if i % 2 else "VG_100K_2"
        picture.save(root / folder / f"{i}.jpg", quality=95)
        url = f"https://cs.stanford.edu/people/rak248/{folder}/{i}.jpg"
        attributes.append({"image_id": i, "attributes": scene(i)})
        image_data.append(
            {"image_id": i, "width": WIDTH, "height": HEIGHT, "url": url, "coco_id": None, "flickr_id": None}
        )
    attributes.append({"image_id": 99, "attributes": [scene(1)[2]]})  # nothing is known of its objects, and no file
    (root / "attributes.json").write_text(json.dumps(attributes))
    (root / "image_data.json").write_text(json.dumps(image_data))
    return root
