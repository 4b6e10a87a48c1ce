"""Painted scenes: what is where, in which colour, and the same on every device."""

from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_files import assert_same_scenes

from foveal.data._random import uniform
from foveal.data.embedded import painting
from foveal.data.embedded.painting import generate, paint, paste, resize_weights
from foveal.data.embedded.scenes import COLOURS, Scenes, SceneSpec, Sources, digit_counts
from foveal.data.formats.mnist import mnist
from foveal.errors import UserError

SMALL = SceneSpec(canvas=48, digits=(2, 5), scale=(0.3, 1.0))


@pytest.fixture(scope="module")
def solid():
    """Digits that fill their box at full intensity: what is painted is the colour itself."""
    return Sources(torch.full((10, 28, 28), 255, dtype=torch.uint8), torch.arange(11))


@pytest.fixture(scope="module")
def blocks(solid):
    return generate(SMALL, solid, 3, 400)


def part(scenes, index):
    return Scenes(*(getattr(scenes, f.name)[index] for f in fields(Scenes)))


@pytest.mark.parametrize("spec", [SMALL, SceneSpec(48, (2, 5), (0.3, 1.0), distractors=17, background=True)])
def test_images_do_not_depend_on_the_batch_size_or_the_start(spec, embedded):
    pictures = (uniform(0, 0, torch.arange(5 * 3 * 50 * 60)) * 256).view(5, 3, 50, 60).to(torch.uint8)
    sources = Sources(embedded.digits, embedded.starts, pictures)
    whole = generate(spec, sources, 1, 30, batch=128)
    assert_same_scenes(generate(spec, sources, 1, 30, batch=7), whole)
    assert_same_scenes(generate(spec, sources, 1, 8, batch=1), part(whole, slice(8)))
    assert_same_scenes(generate(spec, sources, 1, 9, start=14), part(whole, slice(14, 23)))
    order = torch.tensor([17, 3, 29])
    assert_same_scenes(paint(spec, sources, 1, order), part(whole, order))


def test_images_do_not_depend_on_the_thread_count(embedded):
    threads = torch.get_num_threads()
    try:
        scenes = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            scenes.append(generate(SMALL, embedded, 2, 16))
    finally:
        torch.set_num_threads(threads)
    assert_same_scenes(scenes[1], scenes[0])
    assert_same_scenes(scenes[2], scenes[0])


def test_images_depend_on_the_seed(embedded):
    one, other = (generate(SMALL, embedded, seed, 8) for seed in (0, 1))
    assert not any(torch.equal(a, b) for a, b in zip(one.images, other.images, strict=True))
    assert len({tuple(image.flatten().tolist()) for image in one.images}) == 8


def test_shapes_and_types(paper):
    assert paper.images.shape == (120, 3, 100, 100)
    assert paper.owner.shape == (120, 100, 100)
    assert paper.images.dtype == paper.owner.dtype == torch.uint8
    assert paper.digit.shape == paper.colour.shape == paper.scale.shape == (120, 9)
    assert paper.box.shape == (120, 9, 3)
    assert len(paper) == 120


def test_digits_of_an_image_are_distinct(paper):
    for row in paper.digit.tolist():
        used = [digit for digit in row if digit >= 0]
        assert row == used + [-1] * (9 - len(used))
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(10))


def test_classes_and_colours_are_equally_likely(blocks):
    used = blocks.digit >= 0
    total = used.sum().item()
    for counts in (blocks.digit[used].bincount(minlength=10), blocks.colour[used].bincount(minlength=5)):
        share = 1 / len(counts)
        assert (counts / total - share).abs().max() < 5 * (share * (1 - share) / total) ** 0.5


def test_colours_repeat_within_an_image(blocks):
    repeated = [len(set(row[row >= 0].tolist())) < (row >= 0).sum() for row in blocks.colour]
    assert 0.2 < sum(repeated) / len(repeated) < 0.9


def test_unused_slots_are_empty(paper):
    unused = paper.digit < 0
    assert unused.any()
    assert (paper.colour[unused] == -1).all()
    assert (paper.colour[~unused] >= 0).all()
    assert (paper.scale[unused] == 0).all()
    assert (paper.box[unused] == 0).all()
    assert (paper.owner.amax((1, 2)).long() <= (~unused).sum(1)).all()


def test_painted_digits_are_as_many_as_promised(paper):
    assert torch.equal((paper.digit >= 0).sum(1), digit_counts(SceneSpec(), 0, torch.arange(120)))


def boxes(scenes):
    """Every used box as (image, slot, left, top, side)."""
    for i, k in zip(*(t.tolist() for t in scenes.triples()), strict=True):
        yield (i, k, *scenes.box[i, k].tolist())


def test_each_mask_lies_inside_its_box_and_the_canvas(paper):
    for i, k, x, y, side in boxes(paper):
        assert 0 <= x <= x + side <= 100
        assert 0 <= y <= y + side <= 100
        mask = paper.owner[i] == k + 1
        assert mask[y : y + side, x : x + side].sum() == mask.sum() > 0


def test_no_box_holds_a_pixel_painted_before(paper):
    later = 0
    for i, k, x, y, side in boxes(paper):
        inside = paper.owner[i, y : y + side, x : x + side]
        assert not ((inside > 0) & (inside < k + 1)).any()
        later += bool((inside > k + 1).any())
    assert later  # a later digit may stand in the empty corner of an earlier box


def test_scale_and_size(paper):
    used = paper.digit >= 0
    scale, side = paper.scale[used].double(), paper.box[used][:, 2]
    assert scale.min() >= 0.5
    assert scale.max() <= 3.0
    exact = 28 * scale
    close = (exact - exact.round()).abs() < 1e-4  # a scale is stored with 24 bits
    assert torch.equal(exact.floor().long()[~close], side[~close])
    assert scale.max() > 2.0
    assert scale.mean() < 1.5  # rejection skews scales downward from their mean of 1.75


def test_a_lone_digit_has_a_uniform_scale_and_place(solid):
    scenes = generate(SceneSpec(canvas=30, digits=(1, 1), scale=(0.25, 0.75)), solid, 0, 3000, batch=1000)
    scale = scenes.scale[:, 0]
    assert scale.mean().item() == pytest.approx(0.5, abs=0.015)
    assert (scale < 0.375).float().mean().item() == pytest.approx(0.25, abs=0.04)
    room = 30 - scenes.box[:, 0, 2]
    for axis in (0, 1):
        place = (scenes.box[:, 0, axis] + 0.5) / (room + 1)
        assert place.mean().item() == pytest.approx(0.5, abs=0.025)
        assert place.var().item() == pytest.approx(1 / 12, abs=0.01)
        assert (scenes.box[:, 0, axis] == room).any()
        assert (scenes.box[:, 0, axis] == 0).any()


def mean_area(scenes):
    """Mean share of the image that the asked-for digit covers."""
    used = (scenes.digit >= 0).sum().item()
    return (scenes.owner > 0).sum().item() / used / scenes.owner[0].numel()


def test_mean_target_area_of_embedded_digits(paper):
    assert 0.037 < mean_area(paper) < 0.046


def test_mean_target_area_of_mnist(real_data, pooled):
    """Uniform attention has the strength of the mean target area, 2.34 % in the paper."""
    sources = pooled(lambda split: mnist(real_data / "mnist", split))
    assert 0.021 < mean_area(generate(SceneSpec(), sources, 0, 256)) < 0.026


def test_colour_noise_is_one_brightness_shift(blocks):
    """The same shift of all three channels, Normal(0, 10), then clipped."""
    table, shifts = torch.tensor(list(COLOURS.values())), []
    for i, k, x, y, side in boxes(blocks):
        patch = blocks.images[i, :, y : y + side, x : x + side].long().flatten(1)
        assert (patch == patch[:, :1]).all()
        painted, plain = patch[:, 0], table[blocks.colour[i, k]]
        free = (painted > 0) & (painted < 255)
        shift = (painted - plain)[free]
        if not len(shift):
            assert (painted == 255).all()  # a very bright white
            continue
        assert (shift == shift[0]).all()
        assert torch.equal(painted, (plain + shift[0]).clamp(0, 255))
        shifts.append(shift[0].item())
    shifts = torch.tensor(shifts).double()
    assert len(shifts) > 1000
    assert shifts.mean().item() == pytest.approx(0, abs=1.5)
    assert shifts.std().item() == pytest.approx(10, abs=1)


def test_intensity_is_alpha_over_the_background(embedded):
    """Every pixel is (colour · a + background · (255 − a)) / 255 for one a, the same for three channels."""
    grey = torch.full((1, 3, 48, 48), 100, dtype=torch.uint8)
    spec = SceneSpec(48, (1, 1), (0.5, 1.0), background=True)
    black = generate(SceneSpec(48, (1, 1), (0.5, 1.0)), embedded, 0, 20)
    on_grey = generate(spec, Sources(embedded.digits, embedded.starts, grey), 0, 20)
    assert torch.equal(black.owner, on_grey.owner)
    outside = (black.owner == 0)[:, None].expand_as(black.images)
    assert (black.images[outside] == 0).all()
    assert (on_grey.images[outside] == 100).all()
    # What the grey adds is 100 · (255 − a) / 255, whatever the colour.
    added = on_grey.images.long() - black.images.long()
    assert (added.amax(1) - added.amin(1)).max() <= 1
    assert added.min() >= -1
    assert added.max() <= 100
    assert (added[~outside] < 5).any()
    assert (added[~outside] > 50).any()


def slow_resize(patch, size):
    """Bilinear interpolation with half-pixel centres, one pixel at a time."""
    s = len(patch)
    out = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        for j in range(size):
            y, x = (min(max((t + 0.5) * s / size - 0.5, 0), s - 1) for t in (i, j))
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, s - 1), min(x0 + 1, s - 1)
            top = patch[y0][x0] * (1 - (x - x0)) + patch[y0][x1] * (x - x0)
            bottom = patch[y1][x0] * (1 - (x - x0)) + patch[y1][x1] * (x - x0)
            out[i, j] = top * (1 - (y - y0)) + bottom * (y - y0)
    return out


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 28), st.integers(1, 40), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2**30))
def test_paste_equals_bilinear_interpolation(source, size, x, y, seed):
    patch = (torch.rand(source, source, generator=torch.Generator().manual_seed(seed)) * 256).to(torch.uint8)
    out = paste(patch[None], torch.tensor([size]), torch.tensor([x]), torch.tensor([y]), 50)[0]
    slow = slow_resize(patch.double().tolist(), size)
    torchs = F.interpolate(
        patch.double()[None, None], (size, size), mode="bilinear", align_corners=False, antialias=False
    )[0, 0]
    inside = out[y : y + size, x : x + size].double()
    assert (inside - slow).abs().max() <= 0.5 + 1e-9
    assert (inside - torchs).abs().max() <= 0.5 + 1e-9
    assert out.sum() == inside.sum()


def test_paste_takes_a_batch_of_sizes():
    patches = torch.arange(2 * 5 * 5, dtype=torch.uint8).view(2, 5, 5)
    together = paste(patches, torch.tensor([7, 12]), torch.tensor([0, 3]), torch.tensor([4, 1]), 16)
    for i, (size, x, y) in enumerate([(7, 0, 4), (12, 3, 1)]):
        alone = paste(patches[i : i + 1], torch.tensor([size]), torch.tensor([x]), torch.tensor([y]), 16)
        assert torch.equal(together[i], alone[0])


def test_paste_is_exact_at_full_size():
    patches = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    zero = torch.tensor([0])
    assert (paste(patches, torch.tensor([900]), zero, zero, 900) == 255).all()


def test_interpolation_halos_count_as_digit():
    """The mask is the resized intensity above zero, wider than the source's pixels."""
    digits = torch.zeros(10, 28, 28, dtype=torch.uint8)
    digits[:, 14, 14] = 255
    scenes = generate(SceneSpec(100, (1, 1), (3.0, 3.0)), Sources(digits, torch.arange(11)), 0, 1)
    assert (scenes.owner > 0).sum() == 5 * 5  # three times as wide, and a halo of one more on each side


def test_resize_weights_are_whole_and_sum_to_twice_the_size():
    size, offset = torch.tensor([13, 30]), torch.tensor([2, 0])
    weights = resize_weights(size, offset, 28, 30)
    assert torch.equal(weights, weights.round())
    rows = weights.sum(2)
    assert torch.equal(rows[0, 2:15], torch.full((13,), 26.0, dtype=torch.float64))
    assert rows[0, :2].count_nonzero() == rows[0, 15:].count_nonzero() == 0
    assert (rows[1] == 60).all()


def test_distractors_lie_below_the_digits(solid):
    spec = SceneSpec(48, (2, 5), (0.3, 1.0), distractors=17)
    plain, crowded = generate(SMALL, solid, 3, 40), generate(spec, solid, 3, 40)
    assert torch.equal(plain.owner, crowded.owner)
    painted = (plain.owner > 0)[:, None].expand_as(plain.images)
    assert torch.equal(plain.images[painted], crowded.images[painted])
    assert (plain.images[~painted] == 0).all()
    behind = (crowded.images * ~painted).flatten(1).count_nonzero(1)
    assert (behind > 0).all()


def test_a_distractor_is_a_coloured_fragment(solid):
    spec = SceneSpec(100, (1, 1), (0.5, 3.0), distractors=1)
    scenes = generate(spec, solid, 0, 200)
    table, sides, places = torch.tensor(list(COLOURS.values())), [], []
    for image, owner in zip(scenes.images.long(), scenes.owner, strict=True):
        behind = (image.sum(0) > 0) & (owner == 0)
        rows, columns = behind.any(1).nonzero()[:, 0], behind.any(0).nonzero()[:, 0]
        if not len(rows):
            continue  # under the digit
        height, width = (int(t.max() - t.min()) + 1 for t in (rows, columns))
        if height != width or behind.sum() != height * width:
            continue  # partly under the digit
        colour = image[:, behind]
        assert (colour == colour[:, :1]).all()
        shift = colour[:, 0] - table
        assert min((s.amax() - s.amin()).item() for s in shift) <= 45  # one of the five, but for clipping
        sides.append(height)
        places.append((rows.min().item(), columns.min().item()))
    assert len(sides) > 100
    assert set(sides) <= set(range(2, 16))
    assert min(sides) <= 3
    assert max(sides) >= 14
    assert len(set(places)) > 90


def test_seventeen_distractors_are_more_than_one(solid):
    def covered(count):
        scenes = generate(SceneSpec(100, (1, 1), (0.5, 0.5), distractors=count), solid, 0, 30)
        return ((scenes.images.sum(1) > 0) & (scenes.owner == 0)).float().mean().item()

    # The mean area of a fragment is about 5² · 3.6 pixels of 10,000, overlaps aside.
    assert covered(17) == pytest.approx(17 * covered(1), rel=0.35)


def test_distractors_of_tiny_scenes(solid):
    scenes = generate(SceneSpec(20, (1, 1), (0.1, 0.15), distractors=17), solid, 0, 4)
    assert (scenes.images.flatten(1).count_nonzero(1) > 0).all()


def coded_pictures(count, height, width):
    """Pictures whose every pixel tells its column, its row and its picture."""
    row, column = torch.arange(height)[:, None], torch.arange(width)[None]
    which = torch.arange(count)
    return torch.stack(
        [
            torch.stack([column.expand(height, width), row.expand(height, width), torch.full((height, width), int(p))])
            for p in which
        ]
    ).to(torch.uint8)


def test_a_background_is_a_window_of_a_given_picture(solid):
    spec = SceneSpec(40, (1, 1), (0.3, 0.3), background=True)
    scenes = generate(spec, Sources(solid.digits, solid.starts, coded_pictures(4, 55, 64)), 0, 200)
    seen, mirrored, corners = set(), 0, set()
    for image, owner in zip(scenes.images.long(), scenes.owner, strict=True):
        free = owner == 0
        column, row, which = image
        assert which[free].unique().numel() == 1
        seen.add(which[free][0].item())
        i, j = (t.expand(40, 40) for t in (torch.arange(40)[:, None], torch.arange(40)))
        top = (row - i)[free].unique()
        straight, flipped = (column - j)[free].unique(), (column + j)[free].unique()
        assert top.numel() == 1
        assert 0 <= top <= 55 - 40
        assert (straight.numel() == 1) != (flipped.numel() == 1)
        left = straight if straight.numel() == 1 else flipped - 39
        assert 0 <= left <= 64 - 40
        mirrored += flipped.numel() == 1
        corners.add((top.item(), left.item()))
    assert seen == {0, 1, 2, 3}
    assert 60 < mirrored < 140
    assert len(corners) > 100


def test_a_background_needs_pictures(solid):
    with pytest.raises(UserError, match="need pictures for their background"):
        generate(SceneSpec(background=True), solid, 0, 1)


def test_images_without_room_are_started_anew(solid, monkeypatch):
    attempts = []

    class Counting(painting._Painter):
        def __init__(self, spec, sources, seed, index, attempt):
            attempts.append((attempt, len(index)))
            super().__init__(spec, sources, seed, index, attempt)

    monkeypatch.setattr(painting, "_Painter", Counting)
    monkeypatch.setattr(painting, "MAX_ROUNDS", 1)
    spec = SceneSpec(canvas=34, digits=(3, 4), scale=(0.35, 0.6))
    scenes = generate(spec, solid, 0, 24)
    assert attempts[0] == (0, 24)
    assert any(attempt > 0 and 0 < count < 24 for attempt, count in attempts)
    assert torch.equal((scenes.digit >= 0).sum(1), digit_counts(spec, 0, torch.arange(24)))
    for i, k, x, y, side in boxes(scenes):  # solid digits: every box is its mask, whole
        assert (scenes.owner[i, y : y + side, x : x + side] == k + 1).all()
    assert (scenes.owner > 0).sum() == sum(side**2 for *_, side in boxes(scenes))
    assert_same_scenes(generate(spec, solid, 0, 24, batch=5), scenes)


def test_no_room_at_all_is_an_error(solid, monkeypatch):
    monkeypatch.setattr(painting, "MAX_ROUNDS", 1)
    with pytest.raises(UserError, match=r"no room for \(2, 2\) digits of scale \(1.0, 1.0\) on 40 pixels"):
        generate(SceneSpec(canvas=40, digits=(2, 2), scale=(1.0, 1.0)), solid, 0, 1)


def test_a_digit_may_fill_the_canvas(solid):
    scenes = generate(SceneSpec(canvas=28, digits=(1, 1), scale=(1.0, 1.0)), solid, 0, 3)
    assert (scenes.owner == 1).all()


def test_generate_needs_an_image(solid):
    with pytest.raises(UserError, match="images=0: expected at least one"):
        generate(SMALL, solid, 0, 0)


def test_progress_wraps_every_batch(solid):
    steps = []

    def progress(begins, total):
        for begin in begins:
            steps.append((begin, total))
            yield begin

    generate(SMALL, solid, 0, 10, start=5, batch=4, progress=progress)
    assert steps == [(5, 3), (9, 3), (13, 3)]
